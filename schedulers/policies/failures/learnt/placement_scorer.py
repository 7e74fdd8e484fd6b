"""ONNX Runtime session of a placement scorer, on one thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from presage.errors import ConfigError, ReleaseError
from presage.schedulers.policies.failures.device_order import Mask
from presage.schedulers.policies.failures.learnt.placement_release import OUTPUT
from presage.system.arrays import AnyArray, Array, Float32s


class PlacementScorer:
    """Scorer of the actions in one state. It can be copied and pickled.

    Parameters
    ----------
    content : bytes
        ONNX file.

    Raises
    ------
    ConfigError
        ONNX Runtime is not installed.
    ReleaseError
        ONNX Runtime cannot load the file.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise ConfigError(
                "policy 'learnt' needs ONNX Runtime, which is not installed; "
                "pip install 'presage[serve]'"
            ) from error
        options = ort.SessionOptions()
        # The order of sums must not depend on the machine, and a call takes microseconds.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session: Any = ort.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own exceptions have no common base
            raise ReleaseError(
                f"placement scorer: ONNX Runtime cannot load it ({_first_line(error)}); restore "
                "the folder from the registry"
            ) from error

    def __reduce__(self) -> tuple[type[PlacementScorer], tuple[bytes]]:
        return PlacementScorer, (self._content,)

    def logits(self, jobs: Array, cluster: Array, allowed: Mask, advised: Mask) -> Float32s:
        """Return the scores of the actions of one state, of shape (J + 1,); not validated.

        Raises
        ------
        ReleaseError
            ONNX Runtime fails, or the scores have another shape.
        """
        found: Float32s = self.batch_logits(
            jobs.astype(np.float32)[None], cluster.astype(np.float32)[None], allowed[None],
            advised[None],
        )[0]  # fmt: skip
        if found.shape != allowed.shape:
            raise ReleaseError(f"it returned {found.shape} scores for {allowed.shape} actions")
        return found

    def batch_logits(
        self, jobs: AnyArray, cluster: AnyArray, allowed: Mask, advised: Mask
    ) -> Float32s:
        """Return the scores of the actions of S states, of shape (S, J + 1); not validated.

        ``jobs`` and ``cluster`` are of float32.

        Raises
        ------
        ReleaseError
            ONNX Runtime fails.
        """
        inputs = {"jobs": jobs, "cluster": cluster, "allowed": allowed, "advised": advised}
        try:
            found: Float32s = self._session.run([OUTPUT], inputs)[0]
        except Exception as error:  # as above
            raise ReleaseError(f"ONNX Runtime failed ({_first_line(error)})") from error
        return found


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
