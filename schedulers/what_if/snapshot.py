"""Copy of a cluster's state from which simulations start.

It is taken under a scheduler's lock, so taking it only copies dictionaries. It holds nothing that
changes later: the scheduler continues while simulations read the copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.core.users.decayed_use import DecayedUse
from presage.schedulers.core.users.quota import NO_QUOTAS, Quotas


@dataclass(frozen=True, slots=True)
class PastJob:
    """Job that has ended.

    Attributes
    ----------
    ended_s : float
        When it ended, by the cluster's clock.
    ran_s : float or None
        Run time on as many devices as it requested; None if unknown, or if it never ran.
    is_finished : bool
        Whether it completed: then its run time shows the error of its forecast.
    kind : str
        Kind of devices that it ran on; "" if unknown.
    """

    job: Job
    ended_s: float
    ran_s: float | None = None
    is_finished: bool = True
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that have ended, and the time since which all of them are known.

    Attributes
    ----------
    since_s : float
        Every job that was submitted later is among ``jobs``, or has not ended.
    """

    jobs: Sequence[PastJob] = ()
    since_s: float = 0.0


NO_PAST = Past((), math.inf)


@dataclass(frozen=True, slots=True)
class Returning:
    """Job that is not in the queue yet, and will be pending again at a known time.

    Attributes
    ----------
    at_s : float
        When it is pending again.
    done : float
        Fraction of its iterations in its last checkpoint.
    why : str
        The reason, in a clause: "its node n3 is silent".
    """

    job: Job
    status: JobStatus
    at_s: float
    done: float
    why: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a cluster at one time.

    Attributes
    ----------
    now_s : float
        Time of the copy.
    jobs : mapping of str to Job
        Jobs that have not ended.
    active : mapping of str to JobStatus
        Running, paused and reserved jobs; running ones in the order of their starts.
    pending : mapping of str to JobStatus
        Pending jobs in queue order.
    progress : Progress
        Reported progress of the jobs.
    estimated : frozenset of str
        Jobs whose reported progress is an estimate of their agent, not a measurement.
    down, failed_devices : frozenset of int
        Nodes and devices that are down; they stay down.
    returning : tuple of Returning
        Jobs that leave their node, or are on a silent one.
    impossible : mapping of str to str
        Why jobs can never run on these nodes, by job id.
    elsewhere : mapping of str to str
        Where jobs run on nodes that are not part of the copy, by job id.
    closed : mapping of str to str
        What waiting jobs wait for besides devices, such as a release, by job id; they do not start.
    limits_s : mapping of str to float
        Time limits of jobs by job id: a job ends after that run time at the latest.
    is_live : bool
        Whether a live cluster with node agents is copied: a job runs on devices of one node only,
        unless it is elastic, and decisions are those of the controller's part of the policy.
    past : Past
        Jobs that have ended.
    quotas : Quotas
        What users may hold.
    use : DecayedUse or None
        Past use of users, for policies with fair share.
    assumptions : tuple of str
        What the copy leaves out or assumes, in sentences.
    """

    now_s: float
    cluster: Cluster
    jobs: Mapping[str, Job]
    active: Mapping[str, JobStatus]
    pending: Mapping[str, JobStatus]
    progress: Progress
    estimated: frozenset[str] = frozenset()
    down: frozenset[int] = frozenset()
    failed_devices: frozenset[int] = frozenset()
    returning: tuple[Returning, ...] = ()
    impossible: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    limits_s: Mapping[str, float] = field(default_factory=dict)
    is_live: bool = False
    past: Past = NO_PAST
    quotas: Quotas = NO_QUOTAS
    use: DecayedUse | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def not_simulated(self) -> frozenset[str]:
        """Jobs that neither start nor end in simulations."""
        return frozenset({*self.elsewhere, *self.closed, *self.impossible})

    def status(self, job_id: str) -> JobStatus | None:
        """Return the status of a job; None if it is returning, or unknown."""
        return self.active.get(job_id) or self.pending.get(job_id)

    def with_job(self, job: Job) -> Snapshot:
        """Return the snapshot with a job that is submitted now."""
        job = replace(job, submit_s=self.now_s)
        return replace(
            self,
            jobs={**self.jobs, job.job_id: job},
            pending={**self.pending, job.job_id: JobStatus(Phase.PENDING, self.now_s)},
        )

    def with_changed(self, jobs: Mapping[str, Job]) -> Snapshot:
        """Return the snapshot with other requests of some of its jobs."""
        returning = tuple(
            replace(one, job=jobs.get(one.job.job_id, one.job)) for one in self.returning
        )
        return replace(self, jobs={**self.jobs, **jobs}, returning=returning)


def take_snapshot(state: State, *, past: Past = NO_PAST) -> Snapshot:
    """Return a copy of a state.

    Parameters
    ----------
    past : Past, optional
        Jobs that have ended; without them, later arrivals are unknown.
    """
    active = {**state.running, **state.paused, **state.reserved}
    pending = {job.job_id: job for job in (*state.pending, *state.held_back)}
    return Snapshot(
        state.now_s,
        state.cluster,
        {**{job_id: state.job(job_id) for job_id in active}, **pending},
        active,
        {job_id: state.status(job_id) for job_id in pending},
        state.copy_progress(),
        down=state.down,
        failed_devices=state.failed_devices,
        past=past,
    )
