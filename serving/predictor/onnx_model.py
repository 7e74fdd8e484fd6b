"""One ONNX predictor of a release, and the guard on what comes out of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from operator import le
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from presage.errors import ReleaseError, one_line
from presage.system.arrays import Array, Float32s, Mask

OUTPUT = "quantiles"
_FEW = 4  # rows that Python compares sooner than numpy begins


class OnnxModel:
    """An ONNX Runtime session whose answers can be relied on.

    Parameters
    ----------
    inputs : set of str
        Names the contract in :mod:`presage.models.release.release` gives this predictor's inputs.
    levels : int
        Quantiles it must answer with.
    least : float
        No output may be below: 0 for a size, 1 for a slowdown.
    sha256 : str, optional
        Digest that the file must have. The bytes that are checked are those that are loaded: a
        file that is replaced after the release was checked is refused.
    """

    def __init__(
        self,
        path: Path,
        *,
        inputs: set[str],
        levels: int,
        least: float,
        sha256: str | None = None,
    ) -> None:
        self._path, self._levels, self._least = path, levels, least
        options = ort.SessionOptions()
        # The models take microseconds: handing parts of one to other threads costs more, and the
        # server's own threads already run calls beside each other.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            content = path.read_bytes()
            self._session: Any = ort.InferenceSession(
                _checked(content, sha256), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own exceptions have no common base
            raise ReleaseError(
                f"{path}: ONNX Runtime cannot load it ({_first_line(error)}); "
                "restore the folder from the registry, or train it again"
            ) from error
        found = {i.name for i in self._session.get_inputs()}
        outputs = [o.name for o in self._session.get_outputs()]
        if found != inputs or OUTPUT not in outputs:
            raise ReleaseError(
                f"{path}: takes {sorted(found)} and gives {outputs}, must take {sorted(inputs)} "
                f"and give {OUTPUT!r}; train it again with this version"
            )

    def quantiles(self, inputs: Mapping[str, Any], present: Mask | None = None) -> Array:
        """What :meth:`run` gives, in float64."""
        found: Array = self.run(inputs, present).astype(np.float64)
        return found

    def run(self, inputs: Mapping[str, Any], present: Mask | None = None) -> Float32s:
        """Checked quantiles of shape (rows, levels), not decreasing along a row.

        ``present`` picks the rows out of an output with more dimensions; what a model says of
        padding is nobody's business.

        Raises
        ------
        ReleaseError
            The model fails, or its answer breaks the contract. No NaN ever reaches a caller.
        """
        try:
            raw = self._session.run([OUTPUT], inputs)[0]
        except Exception as error:  # as above
            raise ReleaseError(
                f"{self._path}: ONNX Runtime failed ({_first_line(error)}); "
                "roll back with `presage models rollback`"
            ) from error
        rows_shape = inputs["features"].shape[:1] if present is None else present.shape
        expected = (*rows_shape, self._levels)
        if raw.shape != expected:
            raise ReleaseError(
                f"{self._path}: answered with shape {raw.shape}, must be {expected}; "
                "train it again with this version"
            )
        rows: Float32s = raw if present is None else raw[present]
        if not _is_good(rows, self._least):
            row = next(i for i in range(len(rows)) if not _is_good(rows[i : i + 1], self._least))
            raise ReleaseError(
                f"{self._path}: predicted quantiles {rows[row].tolist()} for row {row}, must be "
                f"finite, at least {self._least:g} and not decreasing; "
                "roll back with `presage models rollback`"
            )
        return rows


def _checked(content: bytes, sha256: str | None) -> bytes:
    """Return the content if it has this digest; else raise ValueError."""
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("it was replaced after its release was checked")
    return content


def _is_good(rows: Float32s, least: float) -> bool:
    """Whether quantiles (rows, levels) are finite, none below ``least``, and do not decrease.

    Where none is below the one before it, the first is the least, the last the largest, and none
    is NaN.
    """
    if len(rows) <= _FEW:
        return all(
            least <= row[0] and row[-1] < math.inf and all(map(le, row, row[1:]))
            for row in rows.tolist()
        )
    in_order = (rows[:, 1:] >= rows[:, :-1]).all()
    return bool(in_order and rows[:, 0].min() >= least and rows[:, -1].max() < math.inf)


def _first_line(error: Exception) -> str:
    # It may repeat much of a model.
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
