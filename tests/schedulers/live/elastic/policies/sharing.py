"""Policy ``elastic`` with two jobs on a device, and forecasts that allow any two jobs to share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from presage.schedulers.core.action import Action
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.elastic_policy import Elastic

BOUND_BYTES = 256 * 2**20


class Fixed:
    """Forecaster that predicts the same for all jobs."""

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction]:
        return [RuntimePrediction(100.0, 400, BOUND_BYTES)] * len(requests)

    def slowdowns(self, requests: Sequence[tuple[str, tuple[Job, ...]]]) -> list[list[float]]:
        return [[1.1] * len(jobs) for _, jobs in requests]


class Sharing(Elastic):
    """Policy ``elastic`` with constant forecasts."""

    def __init__(self) -> None:
        super().__init__(hold_s=1.0, jobs_per_device=2)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        return super().decide(state, Forecasts(Fixed(), state.cluster), rng)
