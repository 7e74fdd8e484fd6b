"""ONNX model of one predictor, with validation of its outputs."""

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
_SMALL_ROWS = 4  # rows that plain Python compares faster than numpy


class OnnxModel:
    """ONNX Runtime session that validates its outputs.

    Parameters
    ----------
    inputs : set of str
        Names of the inputs by the contract in :mod:`presage.models.release.release`.
    levels : int
        Number of quantiles in an output row.
    least : float
        Lower bound of outputs: 0 for sizes, 1 for slowdowns.
    sha256 : str, optional
        Digest of the file. The checked bytes are the loaded ones, so a file that is replaced after
        the check of the release is rejected.
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
        # The models take microseconds: intra-op threads would cost more than they save, and the
        # server's own threads already run calls in parallel.
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
        """Return the output of :meth:`run` in float64."""
        found: Array = self.run(inputs, present).astype(np.float64)
        return found

    def run(self, inputs: Mapping[str, Any], present: Mask | None = None) -> Float32s:
        """Return validated quantiles of shape (rows, levels), not decreasing along a row.

        ``present`` selects the rows of an output with more dimensions; the output for padding is
        ignored.

        Raises
        ------
        ReleaseError
            The model fails, or its output violates the contract, for example with NaN.
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
    """Return whether quantiles (rows, levels) are finite, at least ``least`` and not decreasing.

    If no quantile is below the previous one, the first is the smallest, the last is the largest,
    and none is NaN.
    """
    if len(rows) <= _SMALL_ROWS:
        return all(
            least <= row[0] and row[-1] < math.inf and all(map(le, row, row[1:]))
            for row in rows.tolist()
        )
    in_order = (rows[:, 1:] >= rows[:, :-1]).all()
    return bool(in_order and rows[:, 0].min() >= least and rows[:, -1].max() < math.inf)


def _first_line(error: Exception) -> str:
    # Later lines may repeat much of the model.
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
