"""The predictor in its caller's process, one job a call: each a new one to it, and one again."""

from __future__ import annotations

import json
import pickle
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from presage.models.release.release import load_release
from presage.serving.predictor.predictor import Predictor

CALLS = 1000

predictor = Predictor(load_release(Path(sys.argv[1])))
predictor.warm_up()
pickled = pickle.loads(Path(sys.argv[2]).read_bytes())


def median_us(placements: Iterable[Any]) -> float:
    """Return the median time of a call."""
    times_s = []
    for placement in placements:
        begin_s = time.perf_counter()
        predictor.predict([placement])
        times_s.append(time.perf_counter() - begin_s)
    return 1e6 * statistics.median(times_s)


for _ in sys.stdin:
    answer = {
        # New objects: what the predictor cached for jobs of the last round does not apply.
        "new_us": median_us(map(pickle.loads, pickled)),
        "again_us": median_us([pickle.loads(pickled[0])] * CALLS),
        "imports_grpc": float("grpc" in sys.modules),
    }
    print(json.dumps(answer), flush=True)
