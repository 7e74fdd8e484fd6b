"""When jobs start and end, if nothing changes or if they request something else.

:func:`what_if` simulates the cluster from its present state onwards, several times: each time with
other run times, drawn from forecasts, and with other later arrivals. It is pure: the simulator, the
live controller and other schedulers call it with a snapshot of their state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from presage.errors import ConfigError, InvalidJobError, UnknownJobError
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.policy_registry import policy_label, policy_maker
from presage.schedulers.what_if.answer import Answer, Basis, Verdict, distribution
from presage.schedulers.what_if.arrivals import Arrivals
from presage.schedulers.what_if.copied_forecasts import (
    CopiedForecasts,
    Copies,
    OriginalForecasts,
)
from presage.schedulers.what_if.resumed_simulation import ResumedSimulation
from presage.schedulers.what_if.run_times import UNKNOWN, RunTime, RunTimes, Source
from presage.schedulers.what_if.sampled_truth import SampledTruth
from presage.schedulers.what_if.snapshot import Snapshot
from presage.schedulers.what_if.variant import AS_REQUESTED, Variant
from presage.system.text.units import counted

SAMPLES = 50
HORIZON_S = 7 * 86_400.0
LIMIT_S = 20.0  # for the simulations of an answer; then the complete futures answer
MAX_SAMPLES, MAX_VARIANTS, MAX_HORIZON_S = 1_000, 64, 366 * 86_400.0
NEVER_S = 1e12  # run time of a job that does not end, and
AT_ONCE_S = 1e-3  # of one that ends at once: between them lies each unknown run time
HIGH_QUANTILE = 0.9  # of run times below ``high_s``, of a forecaster that does not say
_SAME_S = 1.0  # difference of starts up to which they count as equal
_MAX_NAMED = 3

_NO_TIME = "no future could be simulated in time; ask about a shorter horizon"

_Pair = tuple[float, float]  # with the slowest, and with the fastest unknown jobs


def what_if(
    snapshot: Snapshot,
    jobs: Sequence[str | Job],
    *,
    policy: Policy | str,
    forecaster: Forecaster,
    planned_by: Forecaster | None = None,
    variants: Sequence[Variant] = (AS_REQUESTED,),
    samples: int = SAMPLES,
    horizon_s: float = HORIZON_S,
    seed: int = 0,
    ends: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Answer]:
    """Return when jobs start and end, for each job and each variant of its request.

    Parameters
    ----------
    jobs : sequence of str or Job
        Ids of jobs of the snapshot, or jobs that would be submitted now. They are in the same
        simulations: a job that would be submitted now is asked about on its own.
    policy : Policy or str
        The cluster's policy; it is not changed.
    planned_by : Forecaster, optional
        Run times by which the policy plans, if those are not the forecasts: time limits in Slurm.
        They count from the start of a job, whatever its progress.
    variants : sequence of Variant
        Variants of each job's request; they are ignored for jobs that run already.
    samples : int
        Number of simulated futures; all variants have the same ones.
    horizon_s : float
        Seconds after which a simulation ends; later times are infinite.
    ends : bool
        Whether to simulate until the jobs have ended; else ``Answer.end`` is None.
    should_stop : callable
        Whether to answer now, by the futures that are complete; it is called often.

    Returns
    -------
    list of Answer
        By job, then by variant.

    Raises
    ------
    UnknownJobError
        The snapshot has no such job.
    InvalidJobError
        A variant is not valid, or a new job has the id of a job of the snapshot.
    ConfigError
        A policy is not known, or a number is out of range.
    """
    _check(samples, horizon_s, variants)
    branches = [_Branch(one, one.policy or policy, is_live=snapshot.is_live) for one in variants]
    snapshot, job_ids = _with_new_jobs(snapshot, jobs)
    has_kinds = any(one.kinds is not None for one in variants)
    question = _Question(
        snapshot, forecaster, planned_by, samples, horizon_s, seed,
        on_all_kinds=job_ids if has_kinds else (),
    )  # fmt: skip
    question.ask(job_ids, branches, ends=ends, should_stop=should_stop)
    by_branch = [question.answers(job_ids, branch) for branch in branches]
    return [answers[job_id] for job_id in job_ids for answers in by_branch]


class _Branch:
    """Futures of one variant.

    Attributes
    ----------
    snapshot : Snapshot
        The state with the changed requests of the jobs of interest.
    waits, to_end : set of str
        Jobs of interest that have not started, and those whose end is simulated.
    impossible : mapping of str to str
        Why jobs can never run, as far as it is known without a simulation.
    closed : mapping of str to str
        Why jobs do not start in the simulations, though they might run.
    pairs : list
        Simulated futures, each with the slowest and the fastest unknown jobs.
    """

    def __init__(self, variant: Variant, policy: Policy | str, *, is_live: bool) -> None:
        self.variant, self.label = variant, policy_label(policy)
        self._make_policy, self._is_live = policy_maker(policy), is_live
        self.snapshot: Snapshot
        self.waits: set[str] = set()
        self.to_end: set[str] = set()
        self.impossible: Mapping[str, str] = {}
        self.closed: Mapping[str, str] = {}
        self.pairs: list[tuple[ResumedSimulation, ResumedSimulation]] = []

    def make_policy(self) -> Policy:
        """Return a new policy, without anything that it remembers of another future."""
        policy = self._make_policy()
        return policy.controller_policy() if self._is_live else policy

    def starts_s(self, job_id: str) -> list[_Pair]:
        """Return the start of a job in each future; infinite if it does not start."""
        return [
            (one.starts_s.get(job_id, math.inf), other.starts_s.get(job_id, math.inf))
            for one, other in self.pairs
        ]

    def ends_s(self, job_id: str) -> list[_Pair]:
        """Return the end of a job in each future; infinite if it does not finish."""
        return [
            (one.ends_s.get(job_id, math.inf), other.ends_s.get(job_id, math.inf))
            for one, other in self.pairs
        ]

    def refused(self, job_id: str) -> str:
        """Return why a job can never run; "" if it can."""
        return self.pairs[0][0].refused.get(job_id, "") if self.pairs else ""


class _Question:
    """Futures of a snapshot, in which several variants are simulated."""

    def __init__(
        self,
        snapshot: Snapshot,
        forecaster: Forecaster,
        planned_by: Forecaster | None,
        samples: int,
        horizon_s: float,
        seed: int,
        *,
        on_all_kinds: Sequence[str],
    ) -> None:
        self._snapshot, self._samples, self._seed = snapshot, samples, seed
        self._horizon_s = horizon_s
        self._forecasts = Forecasts(forecaster, snapshot.cluster)
        self._forecasts.expect(snapshot.jobs.values())
        self._forecasts.expect(replace(snapshot.jobs[one], kinds=()) for one in on_all_kinds)
        self._forecasts.expect(past.job for past in snapshot.past.jobs)
        self._planned = self._forecasts
        if planned_by is not None:
            self._planned = Forecasts(planned_by, snapshot.cluster)
            self._planned.expect(snapshot.jobs.values())
            self._planned.expect(replace(snapshot.jobs[one], kinds=()) for one in on_all_kinds)
            self._planned.expect(past.job for past in snapshot.past.jobs)
        self._originals = OriginalForecasts(self._planned, snapshot.cluster)
        high_quantile = getattr(forecaster, "high_quantile", HIGH_QUANTILE)
        self._run_times = RunTimes(snapshot, self._forecasts, high_quantile)
        self._past = {
            past.job.job_id: RunTime(1.0, past.ran_s, past.kind)
            for past in snapshot.past.jobs
            if past.ran_s
        }
        never_ran = [past.job.job_id for past in snapshot.past.jobs if not past.ran_s]
        self._arrivals = Arrivals(snapshot, never_ran)
        self._sources = {
            job_id: self._run_times.source(job) for job_id, job in snapshot.jobs.items()
        }
        self._unknown = [
            one
            for one, source in self._sources.items()
            if source in UNKNOWN and one not in snapshot.not_simulated
        ]

    def ask(
        self,
        job_ids: Sequence[str],
        branches: Sequence[_Branch],
        *,
        ends: bool,
        should_stop: Callable[[], bool],
    ) -> None:
        """Simulate the futures of all variants; all of them have the same number."""
        for branch in branches:
            self._prepare(branch, job_ids, ends=ends)
        bounds_s = (NEVER_S, AT_ONCE_S) if self._unknown else (NEVER_S,)
        for number in range(self._samples):
            futures = []
            for branch in branches:
                runs = [self._simulated(branch, number, one, should_stop) for one in bounds_s]
                if any(run is None for run in runs):
                    return
                futures.append([run for run in runs if run is not None])
            for branch, runs_of in zip(branches, futures, strict=True):
                branch.pairs.append((runs_of[0], runs_of[-1]))

    def _prepare(self, branch: _Branch, job_ids: Sequence[str], *, ends: bool) -> None:
        variant, snapshot = branch.variant, self._snapshot
        changed = {
            one: variant.apply(snapshot.jobs[one]) for one in job_ids if not self._has_started(one)
        }
        branch.snapshot = snapshot.with_changed(changed) if variant.changes_job else snapshot
        branch.impossible = self._impossible(changed)
        branch.closed = snapshot.closed
        if variant.changes_job:
            without_place = {
                one: f"it has no place in the queue, and can never run as requested: {why}"
                for one, why in snapshot.impossible.items()
            }
            branch.closed = {**snapshot.closed, **without_place}
            branch.impossible = {
                one: why for one, why in branch.impossible.items() if one not in without_place
            }
        excluded = {*snapshot.not_simulated, *branch.impossible}
        branch.waits = set(changed) - excluded
        branch.to_end = {one for one in job_ids if ends and one not in self._unknown} - excluded

    def answers(self, job_ids: Sequence[str], branch: _Branch) -> Mapping[str, Answer]:
        """Return the answers for one variant, by job."""
        basis = self._basis(branch)
        return {one: self._answer(one, branch, basis) for one in job_ids}

    def _impossible(self, jobs: Mapping[str, Job]) -> Mapping[str, str]:
        """Return why jobs can never run, as far as it is known without a simulation."""
        snapshot = self._snapshot
        found = {one: why for one, why in snapshot.impossible.items() if one in jobs}
        for job_id, job in jobs.items():
            largest = snapshot.cluster.nodes_of(job.kinds).largest
            if snapshot.is_live and not job.is_elastic and job.gpus > largest > 0:
                found[job_id] = (
                    f"it needs {job.gpus} devices of one node; the largest has {largest}"
                )
        return found

    def _simulated(
        self, branch: _Branch, number: int, unknown_s: float, should_stop: Callable[[], bool]
    ) -> ResumedSimulation | None:
        """Return a simulated future; None if it was stopped."""
        copies = Copies()
        draw = self._run_times.draw(Random(f"{self._seed} {number} run times"))  # noqa: S311
        if branch.variant.changes_job:
            for job_id in branch.waits:
                copies.add(job_id, self._snapshot.jobs[job_id])

        def run_time(job: Job) -> RunTime | None:
            original = copies.original(job)
            if original.job_id in self._past:
                return self._past[original.job_id]
            if self._source(original) in UNKNOWN:
                return None
            return draw(job.job_id, original)

        simulation = ResumedSimulation(
            branch.snapshot,
            branch.make_policy(),
            CopiedForecasts(self._originals, copies),
            SampledTruth(self._forecasts, copies, run_time, unknown_s),
            self._later(copies, number),
            elapsed_s=self._run_times.elapsed_s,
            until_started=branch.waits,
            until_ended=branch.to_end,
            reports_elapsed=self._planned is not self._forecasts,
            seed=number,
        )
        until_s = self._snapshot.now_s + self._horizon_s
        return simulation if simulation.run_until(until_s, should_stop) else None

    def _later(self, copies: Copies, number: int) -> Iterator[Job]:
        rng = Random(f"{self._seed} {number} arrivals")  # noqa: S311
        for job, original in self._arrivals.draw(rng, self._snapshot.now_s + self._horizon_s):
            copies.add(job.job_id, original)
            yield job

    def _source(self, job: Job) -> Source:
        found = self._sources.get(job.job_id)
        if found is None:
            found = self._sources[job.job_id] = self._run_times.source(job)
        return found

    def _has_started(self, job_id: str) -> bool:
        status = self._snapshot.active.get(job_id)
        if job_id in self._snapshot.elsewhere:
            return True
        return status is not None and status.phase in (Phase.RUNNING, Phase.PAUSED)

    def _answer(self, job_id: str, branch: _Branch, basis: Basis) -> Answer:
        now_s, variant = self._snapshot.now_s, branch.variant
        if why := branch.impossible.get(job_id) or branch.refused(job_id):
            return Answer(job_id, variant, Verdict.IMPOSSIBLE, why=why, basis=basis)
        apart = (
            (Verdict.STARTED, self._snapshot.elsewhere),
            (Verdict.UNKNOWN, branch.closed),
        )
        for verdict, reasons in apart:
            if job_id in reasons:
                return Answer(job_id, variant, verdict, why=reasons[job_id], basis=basis)
        if not branch.pairs:
            return Answer(job_id, variant, Verdict.UNKNOWN, why=_NO_TIME, basis=basis)
        ends, end = branch.ends_s(job_id), None
        has_end = job_id in branch.to_end
        if has_end and _agree(ends):
            end = distribution([end_s - now_s for end_s, _ in ends])
        is_missing = end is None and (has_end or job_id in self._unknown)
        why = self._why_no_end(job_id) if is_missing else ""
        if self._has_started(job_id):
            first_s = self._snapshot.active[job_id].first_start_s
            start = distribution([min(first_s, now_s) - now_s] * len(branch.pairs))
            return Answer(job_id, variant, Verdict.STARTED, start, end, why, basis)
        starts = branch.starts_s(job_id)
        if not _agree(starts):
            return Answer(job_id, variant, Verdict.UNKNOWN, why=self._why_unknown(), basis=basis)
        start = distribution([start_s - now_s for start_s, _ in starts])
        return Answer(job_id, variant, Verdict.PREDICTED, start, end, why, basis)

    def _why_unknown(self) -> str:
        count = len(self._unknown)
        named = ", ".join(self._unknown[:_MAX_NAMED]) + (", ..." if count > _MAX_NAMED else "")
        jobs = "a job whose run time" if count == 1 else f"{count:,} jobs whose run times"
        return f"it depends on {jobs} cannot be predicted: {named}"

    def _why_no_end(self, job_id: str) -> str:
        if job_id in self._unknown:
            return f"its run time is unknown: {self._sources[job_id].removeprefix('none: ')}"
        return self._why_unknown()

    def _basis(self, branch: _Branch) -> Basis:
        snapshot = self._snapshot
        run_times: dict[str, int] = {}
        apart = snapshot.not_simulated
        for job_id, source in self._sources.items():
            if job_id not in apart:
                run_times[source] = run_times.get(source, 0) + 1
        assumptions = [*snapshot.assumptions, self._arrivals.sentence]
        assumptions += [
            f"job {one.job.job_id} waits again in {max(0.0, one.at_s - snapshot.now_s):.0f} s, "
            f"because {one.why}"
            for one in snapshot.returning[:_MAX_NAMED]
        ]
        if (more := len(snapshot.returning) - _MAX_NAMED) > 0:
            assumptions.append(f"{counted(more, 'other job')} that will wait later")
        if snapshot.down or snapshot.failed_devices:
            assumptions.append("nodes and devices that are down stay down")
        assumptions.append("no job is cancelled, fails or runs out of memory")
        return Basis(
            snapshot.now_s, len(branch.pairs), self._horizon_s, branch.label, run_times,
            tuple(assumptions),
        )  # fmt: skip


def _agree(pairs: Sequence[_Pair]) -> bool:
    """Return whether times do not depend on the unknown run times."""
    return all(one == other or abs(one - other) <= _SAME_S for one, other in pairs)


def _with_new_jobs(snapshot: Snapshot, jobs: Sequence[str | Job]) -> tuple[Snapshot, Sequence[str]]:
    """Return the snapshot with the new jobs among ``jobs``, and the ids of all of them."""
    for job in jobs:
        if isinstance(job, Job):
            if job.job_id in snapshot.jobs:
                raise InvalidJobError(f"job {job.job_id!r} exists already; give its id instead")
            snapshot = snapshot.with_job(job)
        elif job not in snapshot.jobs:
            raise UnknownJobError(f"job {job!r} neither waits nor runs, so it has no start")
    return snapshot, [job.job_id if isinstance(job, Job) else job for job in jobs]


def _check(samples: int, horizon_s: float, variants: Sequence[Variant]) -> None:
    if not 1 <= samples <= MAX_SAMPLES:
        raise ConfigError(f"samples={samples}, must be within 1 and {MAX_SAMPLES:,}")
    if not 0 < horizon_s <= MAX_HORIZON_S:
        raise ConfigError(
            f"horizon_s={horizon_s}, must be above 0 and at most {MAX_HORIZON_S:,.0f}"
        )
    if not 1 <= len(variants) <= MAX_VARIANTS:
        raise ConfigError(
            f"{len(variants):,} variants, must be 1 to {MAX_VARIANTS}; ask about fewer at once"
        )
