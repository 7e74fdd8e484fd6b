"""A policy cannot see the truth: nothing that it is given leads there."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation
from tests.schedulers.clusters import cluster, job

SECRET = {"a": 12345.678, "b": 9876.543}  # durations that occur nowhere else


def reachable(*roots: object) -> list[object]:
    """Return every object reachable from others, except through classes and modules."""
    seen: dict[int, object] = {}
    left = list(roots)
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type | ModuleType):
            continue
        seen[id(one)] = one
        if isinstance(one, FunctionType):
            left += [cell.cell_contents for cell in one.__closure__ or ()]
            continue
        left += gc.get_referents(one)
    return list(seen.values())


class Looks(Fifo):
    """Looks at everything that it is given leads to, before each decision."""

    def __init__(self):
        self.seen, self.foreseen = [], []

    def decide(self, state, forecasts, rng):
        seen = reachable(state, forecasts, rng)
        # How long a job ran, everybody knows once it is over.
        alive = {SECRET[waiting.job_id] for waiting in state.pending}
        alive |= {SECRET[job_id] for job_id in state.running}
        self.foreseen += [one for one in seen if isinstance(one, float) and one in alive]
        self.seen += seen
        return super().decide(state, forecasts, rng)


def seen_by_a_policy(forecaster_of):
    ground_truth, policy = TraceDurations(SECRET), Looks()
    jobs = [job("a", 0.5), job("b", 1.5)]
    simulation = Simulation(cluster(1), policy, forecaster_of(ground_truth), ground_truth, jobs)
    simulation.run()
    assert len(simulation.results) == len(jobs)
    return ground_truth, policy


def test_no_argument_of_a_policy_gives_access_to_the_ground_truth():
    ground_truth, policy = seen_by_a_policy(lambda ground_truth: NoForecasts())

    assert not any(one is ground_truth or one is SECRET for one in policy.seen)
    assert not any(isinstance(one, TraceDurations | Simulation) for one in policy.seen)
    assert policy.foreseen == []


def test_the_search_finds_the_ground_truth_in_an_oracle():
    ground_truth, policy = seen_by_a_policy(lambda ground_truth: Oracle(ground_truth, cluster(1)))

    assert any(one is ground_truth for one in policy.seen)
    assert set(policy.foreseen) == set(SECRET.values())
