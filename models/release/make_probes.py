"""Probes of predictors that are about to become a release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from presage.models.release.probes import Probes, choose_probes, run_probes
from presage.system.arrays import Array, Float32s


def make_probes(
    models: Mapping[str, bytes], features: Float32s, kinds: Sequence[str], *, median: int
) -> Probes:
    """Choose probes among training rows, and record the outputs of ONNX files on one thread.

    Parameters
    ----------
    models : mapping of str to bytes
        ONNX file of each predictor.
    features : ndarray of shape (rows, columns of the full set)
    kinds : sequence of str
        Device kind of each row.
    median : int
        Position of 0.5 among the levels.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = {
        name: ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for name, model in models.items()
    }

    def run(name: str, inputs: Mapping[str, Float32s]) -> Array:
        found = sessions[name].run(["quantiles"], dict(inputs))[0].astype(np.float64)
        quantiles: Array = found.reshape(-1, found.shape[-1])
        return quantiles

    chosen, colocations = choose_probes(kinds)
    inputs = np.ascontiguousarray(features[chosen], dtype=np.float32)
    return Probes(
        inputs,
        colocations,
        run_probes(run, models.keys(), inputs, colocations, median=median),
    )
