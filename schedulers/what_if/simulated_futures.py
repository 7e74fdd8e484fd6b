"""Simulated futures of a snapshot: what happens to some jobs, with other run times and arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import Policy
from presage.schedulers.what_if.arrivals import Arrivals
from presage.schedulers.what_if.copied_forecasts import (
    CopiedForecasts,
    Copies,
    OriginalForecasts,
)
from presage.schedulers.what_if.local_forecaster import LocalForecaster
from presage.schedulers.what_if.resumed_simulation import ResumedSimulation
from presage.schedulers.what_if.run_times import UNKNOWN, RunTime, RunTimes, Source
from presage.schedulers.what_if.sampled_truth import SampledTruth
from presage.schedulers.what_if.snapshot import Snapshot

NEVER_S = 1e12  # run time of a job that does not end, and
AT_ONCE_S = 1e-3  # of one that ends at once: between them lies each unknown run time
HIGH_QUANTILE = 0.9  # of run times below ``high_s``, of a forecaster that does not say


class Future(NamedTuple):
    """What happens to the jobs of interest, as in :class:`ResumedSimulation`."""

    starts_s: Mapping[str, float]
    ends_s: Mapping[str, float]
    refused: Mapping[str, str]


Pair = tuple[Future, Future]  # with the slowest, and with the fastest unknown jobs


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated of each future.

    Attributes
    ----------
    snapshot : Snapshot
        The state with the changed requests of the jobs of interest.
    make_policy : callable
        Returns a new policy, without anything that it remembers of another future.
    waits, to_end : set of str
        Jobs of interest that have not started, and those whose end is simulated.
    changes_job : bool
        Whether the jobs of interest have other requests than in the present state.
    """

    snapshot: Snapshot
    make_policy: Callable[[], Policy]
    waits: set[str]
    to_end: set[str]
    changes_job: bool


class FutureSimulator:
    """Simulator of the futures of a snapshot; futures of one number have the same run times.

    Another process may get a copy, which raises :class:`NeedsForecasterError` where a forecaster
    has to be asked.

    Parameters
    ----------
    planned_by : Forecaster or None
        Run times by which the policy plans, if those are not the forecasts.
    on_all_kinds : sequence of str
        Jobs whose forecasts on all kinds of devices are needed.

    Attributes
    ----------
    arrivals : Arrivals
        Later arrivals.
    sources : dict of str to Source
        Origin of the run time of each job.
    unknown : list of str
        Simulated jobs without a known run time.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        forecaster: Forecaster,
        planned_by: Forecaster | None,
        *,
        horizon_s: float,
        seed: int,
        on_all_kinds: Sequence[str] = (),
    ) -> None:
        self._snapshot, self._horizon_s, self._seed = snapshot, horizon_s, seed
        self._forecasts = _forecasts(snapshot, forecaster, on_all_kinds)
        self._planned = self._forecasts
        if planned_by is not None:
            self._planned = _forecasts(snapshot, planned_by, on_all_kinds)
        self._originals = OriginalForecasts(self._planned, snapshot.cluster)
        high_quantile = getattr(forecaster, "high_quantile", HIGH_QUANTILE)
        self._run_times = RunTimes(snapshot, self._forecasts, high_quantile)
        self._past = {
            past.job.job_id: RunTime(1.0, past.ran_s, past.kind)
            for past in snapshot.past.jobs
            if past.ran_s
        }
        never_ran = [past.job.job_id for past in snapshot.past.jobs if not past.ran_s]
        self.arrivals = Arrivals(snapshot, never_ran)
        self.sources = {
            job_id: self._run_times.source(job) for job_id, job in snapshot.jobs.items()
        }
        self.unknown = [
            one
            for one, source in self.sources.items()
            if source in UNKNOWN and one not in snapshot.not_simulated
        ]

    def simulate(
        self, scenarios: Sequence[Scenario], should_stop: Callable[[], bool], number: int
    ) -> list[Pair] | None:
        """Return a future of each scenario; None if it was stopped."""
        bounds_s = (NEVER_S, AT_ONCE_S) if self.unknown else (NEVER_S,)
        pairs: list[Pair] = []
        for scenario in scenarios:
            futures: list[Future] = []
            for unknown_s in bounds_s:
                simulation = self._simulation(scenario, number, unknown_s)
                if not simulation.run_until(self._until_s, should_stop):
                    return None
                futures.append(Future(simulation.starts_s, simulation.ends_s, simulation.refused))
            pairs.append((futures[0], futures[-1]))
        return pairs

    @property
    def _until_s(self) -> float:
        return self._snapshot.now_s + self._horizon_s

    def _simulation(self, scenario: Scenario, number: int, unknown_s: float) -> ResumedSimulation:
        copies = Copies()
        draw = self._run_times.draw(Random(f"{self._seed} {number} run times"))  # noqa: S311
        if scenario.changes_job:
            for job_id in scenario.waits:
                copies.add(job_id, self._snapshot.jobs[job_id])

        def run_time(job: Job) -> RunTime | None:
            original = copies.original(job)
            if original.job_id in self._past:
                return self._past[original.job_id]
            if self._source(original) in UNKNOWN:
                return None
            return draw(job.job_id, original)

        return ResumedSimulation(
            scenario.snapshot,
            scenario.make_policy(),
            CopiedForecasts(self._originals, copies),
            SampledTruth(self._forecasts, copies, run_time, unknown_s),
            self._later(copies, number),
            elapsed_s=self._run_times.elapsed_s,
            until_started=scenario.waits,
            until_ended=scenario.to_end,
            reports_elapsed=self._planned is not self._forecasts,
            seed=number,
        )

    def _later(self, copies: Copies, number: int) -> Iterator[Job]:
        rng = Random(f"{self._seed} {number} arrivals")  # noqa: S311
        for job, original in self.arrivals.draw(rng, self._until_s):
            copies.add(job.job_id, original)
            yield job

    def _source(self, job: Job) -> Source:
        found = self.sources.get(job.job_id)
        return self._run_times.source(job) if found is None else found


def _forecasts(
    snapshot: Snapshot, forecaster: Forecaster, on_all_kinds: Sequence[str]
) -> Forecasts:
    found = Forecasts(LocalForecaster(forecaster), snapshot.cluster)
    found.expect(snapshot.jobs.values())
    found.expect(replace(snapshot.jobs[one], kinds=()) for one in on_all_kinds)
    found.expect(past.job for past in snapshot.past.jobs)
    return found
