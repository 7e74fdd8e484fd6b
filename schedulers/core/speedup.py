"""Predicted speed of a job on other numbers of devices than it requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from presage.schedulers.core.job import Job


class SpeedupRequest(NamedTuple):
    """A job on ``gpus`` devices of a kind on ``nodes`` nodes, to compare with its request.

    Attributes
    ----------
    requested_nodes : int
        Fewest nodes that hold the devices that the job requests.
    """

    job: Job
    kind: str
    gpus: int
    nodes: int
    requested_nodes: int


class Speedup(NamedTuple):
    """Speed of a job on some devices over that on its requested devices on the fewest nodes.

    Attributes
    ----------
    median, low, high : float
        Prediction, and bounds that contain 80 % of jobs; positive, 1 for the request itself.
    sync_share : float or None
        Share of the time, within [0, 1], that synchronization accounts for; None if unknown.
    """

    median: float
    low: float
    high: float
    sync_share: float | None = None


@runtime_checkable
class SpeedupForecaster(Protocol):
    """Forecaster that also predicts how jobs scale with their number of devices."""

    def speedups(self, requests: Sequence[SpeedupRequest]) -> Sequence[Speedup | None]:
        """Return the speed-up of each request, in order; None if unknown."""
        ...


def fewest_nodes(gpus: int, largest_node: int) -> int:
    """Return the number of nodes of a consolidated gang."""
    return -(-gpus // max(1, largest_node))


def clean_speedup(speedup: Speedup | None, job: Job, gpus: int) -> Speedup:
    """Return a usable prediction: without one, no number of devices speeds a job up.

    Fewer devices than requested slow it down in proportion then.
    """
    if speedup is not None and all(math.isfinite(part) and part > 0 for part in speedup[:3]):
        share = speedup.sync_share
        is_valid = share is None or 0 <= share <= 1
        return speedup if is_valid else speedup._replace(sync_share=None)
    slowed = min(1.0, gpus / job.gpus)
    return Speedup(slowed, slowed, 1.0)
