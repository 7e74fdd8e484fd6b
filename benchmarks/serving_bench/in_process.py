"""The predictor in its caller's process, one job a call, every job a new one to it."""

from __future__ import annotations

import json
import pickle
import statistics
import sys
import time
from pathlib import Path

from presage.models.release import load_release
from presage.serving.predictor import Predictor

predictor = Predictor(load_release(Path(sys.argv[1])))
predictor.warm_up()
pickled = pickle.loads(Path(sys.argv[2]).read_bytes())

for _ in sys.stdin:
    times_s = []
    # Read anew: nothing that the predictor kept of a job of the last round is of use.
    for placement in map(pickle.loads, pickled):
        begin_s = time.perf_counter()
        predictor.predict([placement])
        times_s.append(time.perf_counter() - begin_s)
    answer = {"p50_us": 1e6 * statistics.median(times_s), "imports_grpc": "grpc" in sys.modules}
    print(json.dumps(answer), flush=True)
