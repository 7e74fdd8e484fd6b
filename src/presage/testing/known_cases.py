"""Cases that policies are known to fail on; they are checked after random ones."""

from __future__ import annotations

from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.testing.case import GIB, Case
from presage.testing.random_cases import cluster_of

_FOUR_OF_TWO_NODES = cluster_of((4, "v100"), (4, "v100"))

# Each node has one idle device at 10 s: enough for the gang, but not on one node.
_SPREAD = Case(
    _FOUR_OF_TWO_NODES,
    (
        Job("0", 0.0, gpus=3),
        Job("1", 0.0),
        Job("2", 0.0, gpus=3),
        Job("3", 0.0),
        Job("4", 5.0, gpus=2, latency_sensitive=True),
        Job("5", 5.0, gpus=2, memory_bytes=16 * GIB),
    ),
    {"0": 1000.0, "1": 10.0, "2": 1000.0, "3": 10.0, "4": 10.0, "5": 10.0},
    (None,),
)
# Best-effort jobs come first, and leave a latency-sensitive gang too few devices.
_LATE_GANG = Case(
    cluster_of((2, "v100"), (2, "v100")),
    (
        Job("0", 0.0),
        Job("1", 0.0, latency_sensitive=True),
        Job("2", 0.0, gpus=4, latency_sensitive=True),
        Job("3", 0.0, latency_sensitive=True),
    ),
    {"0": 1.0, "1": 8.0, "2": 1.0, "3": 5000.0},
    (RuntimePrediction(5.0, 300, 2 * GIB), RuntimePrediction(float("nan"), 600, 4 * GIB), None),
)
# A small job that arrives later is predicted to be shorter.
_SHORTER = Case(
    cluster_of((1, "v100")),
    (Job("0", 0.0), Job("1", 3.0), Job("2", 3.0, latency_sensitive=True)),
    {"0": 5000.0, "1": 1.0, "2": 8.0},
    (RuntimePrediction(9.0, 600, 7 * GIB), RuntimePrediction(4.0, 300, 2 * GIB)),
)
KNOWN_CASES = (_SPREAD, _LATE_GANG, _SHORTER)
