"""Policies of benchmarks/failures_live, with failure rates on its scale of time.

The hazards of forecasts are means over a day of the cluster's clock, in which every node fails
here. These policies read the same history of outages, and use the same estimate of hazards, with
times in minutes in place of days.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.failures_live.trace import MODEL_DAY_S, MTBF_DAYS
from presage.features.hazard.hazard_model import DAY_S, HazardModel
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.policies.failures.expected import Expected
from presage.schedulers.policies.failures.learnt.learnt_policy import Learnt
from presage.schedulers.policies.failures.least_failing import LeastFailing
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.arrays import Array

# The mean rate is known, as from a fit to the history of a site; those of single nodes are not.
HAZARD_MODEL = HazardModel(DAY_S / MODEL_DAY_S / MTBF_DAYS, 0.0, ())
WITHIN_S = 1.0
RELEASE = Path(".cache/failures_live/release").absolute()
REPAIR_S = 15.0  # from a failure until the controller starts the job on another node


class HistoryHazards:
    """Source of failure rates: the hazard model on the history of outages."""

    def __init__(self) -> None:
        self._forecaster = OutageHazards(HAZARD_MODEL)

    def rates_per_s(self, state: State, forecasts: Forecasts | None = None) -> Array:
        """Return the expected failures per second of every device."""
        del forecasts
        chance = self._forecaster.hazards(state, WITHIN_S, interval=False).probability
        rates: Array = -np.log1p(-chance) / WITHIN_S
        return rates


class SafestFirst(LeastFailing):
    """The policy ``least-failing``."""

    def __init__(self) -> None:
        super().__init__(hazards=HistoryHazards())


class ExpectedFirst(Expected):
    """The policy ``expected``."""

    def __init__(self) -> None:
        super().__init__(repair_s=REPAIR_S, hazards=HistoryHazards())


class LearntFirst(Learnt):
    """The policy ``learnt``, with a release that was trained for this benchmark."""

    def __init__(self, release: str) -> None:
        super().__init__(release, hazards=HistoryHazards())


POLICIES = {
    "fifo": "fifo",
    "least-failing": f"{__name__}:{SafestFirst.__name__}",
    "expected": f"{__name__}:{ExpectedFirst.__name__}",
    "learnt": f"{__name__}:{LearntFirst.__name__}:release={RELEASE}",
}


def exported_rates(found: pb.OutagesResponse, nodes: list[str], *, after_s: float) -> list[float]:
    """Return the estimated failures per second of each node, by the outages that a cluster exports.

    Parameters
    ----------
    after_s : float
        Start of the history to use, in seconds of the cluster's clock.
    """
    events = [
        (at_s, is_repair, row.device_id)
        for row in found.devices
        for one in row.outages
        if one.from_s >= after_s
        for at_s, is_repair in ((one.from_s, False), (one.until_s, True))
        if not is_repair or one.HasField("until_s")
    ]
    history = OutageHistory(after_s)
    for at_s, is_repair, device_id in sorted(events):
        (history.record_repair if is_repair else history.record_failure)(device_id, at_s)
    ids = tuple(f"{node}/0" for node in nodes)
    state: Any = SimpleNamespace(outages=history, device_ids=ids, now_s=found.now_s)
    return HistoryHazards().rates_per_s(state).tolist()
