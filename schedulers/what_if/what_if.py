"""When jobs start and end, if nothing changes or if they request something else.

:func:`what_if` simulates the cluster from its present state onwards, several times: each time with
other run times, drawn from forecasts, and with other later arrivals. It is pure: the simulator, the
live controller and other schedulers call it with a snapshot of their state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from presage.errors import ConfigError, InvalidJobError, UnknownJobError
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.policy_registry import policy_label, policy_maker
from presage.schedulers.what_if.answer import Answer, Basis, Verdict, distribution
from presage.schedulers.what_if.future_processes import simulated_futures
from presage.schedulers.what_if.simulated_futures import FutureSimulator, Pair, Scenario
from presage.schedulers.what_if.snapshot import Snapshot
from presage.schedulers.what_if.variant import AS_REQUESTED, Variant
from presage.system.text.units import counted

SAMPLES = 50
HORIZON_S = 7 * 86_400.0
LIMIT_S = 20.0  # for the simulations of an answer; then the complete futures answer
MAX_SAMPLES, MAX_VARIANTS, MAX_HORIZON_S = 1_000, 64, 366 * 86_400.0
MAX_PROCESSES = 64
_SAME_S = 1.0  # difference of starts up to which they count as equal
_MAX_NAMED = 3

_NO_TIME = "no future could be simulated in time; ask about a shorter horizon"

_Times = tuple[float, float]  # with the slowest, and with the fastest unknown jobs


def _never() -> bool:
    return False


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
    should_stop: Callable[[], bool] = _never,
    processes: int = 1,
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
    processes : int
        Number of processes that simulate futures. They are started if it is above 1 and more than
        a second of simulations remains. A program that sets it keeps its main module free of code
        outside of ``if __name__ == "__main__"``, and ``policy`` and ``should_stop`` can be pickled.
        The answers do not depend on it.

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
    _check(samples, horizon_s, variants, processes)
    branches = [_Branch(one, one.policy or policy, is_live=snapshot.is_live) for one in variants]
    snapshot, job_ids = _with_new_jobs(snapshot, jobs)
    has_kinds = any(one.kinds is not None for one in variants)
    simulator = FutureSimulator(
        snapshot, forecaster, planned_by, horizon_s=horizon_s, seed=seed,
        on_all_kinds=job_ids if has_kinds else (),
    )  # fmt: skip
    question = _Question(snapshot, simulator, samples, horizon_s)
    question.ask(job_ids, branches, ends=ends, should_stop=should_stop, processes=processes)
    by_branch = [question.answers(job_ids, branch) for branch in branches]
    return [answers[job_id] for job_id in job_ids for answers in by_branch]


class _Branch:
    """Futures of one variant.

    Attributes
    ----------
    scenario : Scenario
        What is simulated of each future.
    impossible : mapping of str to str
        Why jobs can never run, as far as it is known without a simulation.
    closed : mapping of str to str
        Why jobs do not start in the simulations, though they might run.
    pairs : list
        Simulated futures.
    """

    def __init__(self, variant: Variant, policy: Policy | str, *, is_live: bool) -> None:
        self.variant, self.label = variant, policy_label(policy)
        self.make_policy = policy_maker(policy)
        if is_live:
            self.make_policy = partial(_controller_policy, self.make_policy)
        self.scenario: Scenario
        self.impossible: Mapping[str, str] = {}
        self.closed: Mapping[str, str] = {}
        self.pairs: list[Pair] = []

    def starts_s(self, job_id: str) -> list[_Times]:
        """Return the start of a job in each future; infinite if it does not start."""
        return [
            (one.starts_s.get(job_id, math.inf), other.starts_s.get(job_id, math.inf))
            for one, other in self.pairs
        ]

    def ends_s(self, job_id: str) -> list[_Times]:
        """Return the end of a job in each future; infinite if it does not finish."""
        return [
            (one.ends_s.get(job_id, math.inf), other.ends_s.get(job_id, math.inf))
            for one, other in self.pairs
        ]

    def refused(self, job_id: str) -> str:
        """Return why a job can never run; "" if it can."""
        return self.pairs[0][0].refused.get(job_id, "") if self.pairs else ""


def _controller_policy(make_policy: Callable[[], Policy]) -> Policy:
    return make_policy().controller_policy()


class _Question:
    """Futures of a snapshot, in which several variants are simulated."""

    def __init__(
        self, snapshot: Snapshot, simulator: FutureSimulator, samples: int, horizon_s: float
    ) -> None:
        self._snapshot, self._simulator = snapshot, simulator
        self._samples, self._horizon_s = samples, horizon_s
        self._sources, self._unknown = simulator.sources, simulator.unknown

    def ask(
        self,
        job_ids: Sequence[str],
        branches: Sequence[_Branch],
        *,
        ends: bool,
        should_stop: Callable[[], bool],
        processes: int,
    ) -> None:
        """Simulate the futures of all variants; all of them have the same number."""
        for branch in branches:
            self._prepare(branch, job_ids, ends=ends)
        scenarios = [branch.scenario for branch in branches]
        for pairs in simulated_futures(
            self._simulator, scenarios, should_stop, self._samples, processes
        ):
            for branch, pair in zip(branches, pairs, strict=True):
                branch.pairs.append(pair)

    def _prepare(self, branch: _Branch, job_ids: Sequence[str], *, ends: bool) -> None:
        variant, snapshot = branch.variant, self._snapshot
        changed = {
            one: variant.apply(snapshot.jobs[one]) for one in job_ids if not self._has_started(one)
        }
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
        branch.scenario = Scenario(
            snapshot.with_changed(changed) if variant.changes_job else snapshot,
            branch.make_policy,
            set(changed) - excluded,
            {one for one in job_ids if ends and one not in self._unknown} - excluded,
            variant.changes_job,
        )

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
        has_end = job_id in branch.scenario.to_end
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
        assumptions = [*snapshot.assumptions, self._simulator.arrivals.sentence]
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


def _agree(pairs: Sequence[_Times]) -> bool:
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


def _check(samples: int, horizon_s: float, variants: Sequence[Variant], processes: int) -> None:
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
    if not 1 <= processes <= MAX_PROCESSES:
        raise ConfigError(f"processes={processes}, must be within 1 and {MAX_PROCESSES}")
