"""Baseline: ONNX Runtime on the same rows, the models one after another."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import onnxruntime as ort


def session(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


rows = np.load(sys.argv[1])
sessions = [session(path) for path in sys.argv[2:]]


def once_s(count: int) -> float:
    """Return the seconds of all models on the first rows."""
    features = rows[:count]
    begin_s = time.perf_counter()
    for model in sessions:
        model.run(["quantiles"], {"features": features})
    return time.perf_counter() - begin_s


for line in sys.stdin:
    spec = json.loads(line)
    once_s(spec["rows"])
    times_s = [once_s(spec["rows"]) for _ in range(spec["calls"])]
    print(json.dumps({"p50_us": 1e6 * statistics.median(times_s)}), flush=True)
