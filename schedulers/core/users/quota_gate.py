"""Gate before the policy's queue: pending jobs of a user enter it while the quota allows all.

As in Kueue, a job gets a part of the quota before it is scheduled. So no policy can exceed a quota,
whichever of the jobs in its queue it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import ENDED, JobStatus, Phase
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.users.quota import Quotas, devices_text, why_never


class QuotaGate:
    """Jobs of the users that have a quota.

    A holding job takes of the quota what it holds or, if that is more, its demand: its share may
    grow again. A pending job takes its demand on its fewest devices. Jobs are admitted in the order
    of the policy's key; one that does not fit is skipped. What is left is divided evenly among
    elastic jobs, as devices by which they may grow.

    Parameters
    ----------
    make_queue : callable
        Returns an empty queue in the order of the policy.
    demand_milli : callable
        Most compute that a job gets of each of its devices, by the job and its status.

    Attributes
    ----------
    quotas : Quotas
    elsewhere_milli : callable
        What a user's jobs hold that the ledger does not know.
    """

    def __init__(
        self,
        quotas: Quotas,
        make_queue: Callable[[], Queue],
        demand_milli: Callable[[Job, JobStatus], int],
    ) -> None:
        self.quotas = quotas
        self.elsewhere_milli: Callable[[str], int] = lambda user: 0
        self._make_queue, self._demand_milli = make_queue, demand_milli
        self._waiting: dict[str, Queue] = {}  # pending jobs, by user
        self._statuses: dict[str, JobStatus] = {}  # of pending and holding jobs
        self._holding: dict[str, dict[str, None]] = {}
        self._admitted: dict[str, dict[str, None]] = {}
        self._demands: dict[str, int] = {}
        self._requested: dict[str, tuple[int, int, int]] = {}  # sizes of elastic jobs
        self._held_milli: dict[str, int] = {}  # of users, at their last admission
        self._outdated: dict[str, None] = {}  # users to admit jobs of

    def connect(
        self,
        jobs: dict[str, Job],
        open_job: Callable[[Job, JobStatus], None],
        close_job: Callable[[str], None],
    ) -> None:
        """Set the ledger's jobs, and how a job enters and leaves the policy's queue."""
        self._jobs, self._open, self._close = jobs, open_job, close_job

    def renew(
        self, make_queue: Callable[[], Queue], demand_milli: Callable[[Job, JobStatus], int]
    ) -> None:
        """Change the order and the demands of jobs that are added later; none may be pending."""
        self._make_queue, self._demand_milli = make_queue, demand_milli
        self._waiting = {}

    def limits(self, job: Job) -> bool:
        """Return whether the user of a job has a quota."""
        return self.quotas.devices_milli(job.user) is not None

    # Changes of jobs ------------------------------------------------------------------------

    def add(self, job: Job, status: JobStatus) -> None:
        """Add a pending job."""
        self.note(job, status)
        if job.user not in self._waiting:
            self._waiting[job.user] = self._make_queue()
        self._waiting[job.user].add(job, status)

    def remove(self, job: Job) -> None:
        """Remove a job that is not pending any more."""
        self._waiting[job.user].remove(job.job_id)
        admitted = self._admitted.get(job.user, {})
        if job.job_id in admitted:
            del admitted[job.job_id]
            self._close(job.job_id)

    def note(self, job: Job, status: JobStatus) -> None:
        """Note the status of a job after a change."""
        if status.phase in ENDED:
            self.forget(job)
            return
        job_id = job.job_id
        self._outdated[job.user] = None
        self._statuses[job_id] = status
        if job.is_elastic:
            self._requested.setdefault(job_id, (job.gpus, job.min_gpus, job.max_gpus))
        if job_id not in self._demands or status.overflows:
            self._demands[job_id] = self._demand_milli(job, status)
        if status.phase is Phase.PENDING:
            self._holding.get(job.user, {}).pop(job_id, None)
        else:
            self._holding.setdefault(job.user, {})[job_id] = None

    def forget(self, job: Job) -> None:
        """Drop a job that is not pending and holds nothing."""
        self._outdated[job.user] = None
        self._holding.get(job.user, {}).pop(job.job_id, None)
        self._statuses.pop(job.job_id, None)
        self._demands.pop(job.job_id, None)
        self._requested.pop(job.job_id, None)

    def review(self) -> None:
        """Admit jobs again, since what users hold elsewhere has changed."""
        self._outdated.update(dict.fromkeys((*self._waiting, *self._holding)))

    def holding(self, user: str) -> Collection[str]:
        """Return the jobs of a user that hold devices."""
        return self._holding.get(user, {})

    # Admission ------------------------------------------------------------------------------

    def admit(self) -> None:
        """Update the policy's queue, and the sizes of elastic jobs, if jobs have changed."""
        if not self._outdated:
            return
        outdated, self._outdated = self._outdated, {}
        for user in outdated:
            before = self._admitted.get(user, {})
            admitted, sizes = self._admissible(user)
            limited = {job_id: self._limited(job_id, size) for job_id, size in sizes.items()}
            for job_id in [*before]:
                if job_id not in admitted or limited[job_id] is not self._jobs[job_id]:
                    self._close(job_id)
                    del before[job_id]
            self._jobs.update(limited)
            for job_id in admitted:
                if job_id not in before:
                    self._open(limited[job_id], self._statuses[job_id])
            self._admitted[user] = admitted

    def _admissible(self, user: str) -> tuple[dict[str, None], dict[str, int]]:
        """Return the pending jobs that the quota has room for, and the most devices of all jobs."""
        held_milli = self.elsewhere_milli(user)
        free = (self.quotas.devices_milli(user) or 0) - held_milli
        sizes: dict[str, int] = {}
        for job_id in self._holding.get(user, ()):
            status = self._statuses[job_id]
            sizes[job_id] = max(len(status.allocations), self._jobs[job_id].fewest_gpus)
            free -= max(status.held_milli, sizes[job_id] * self._demands[job_id])
            held_milli += status.held_milli
        admitted: dict[str, None] = {}
        cursor = self._waiting[user].cursor() if user in self._waiting else None
        for job in cursor or ():
            if free <= 0:
                break
            if self._need_milli(job) <= free:
                free -= self._need_milli(job)
                admitted[job.job_id], sizes[job.job_id] = None, job.fewest_gpus
            elif cursor is not None and not self._statuses[job.job_id].overflows:
                cursor.skip()  # jobs like it need as much, or more after an overflow
        self._grow(sizes, free)
        self._held_milli[user] = held_milli
        return admitted, sizes

    def _need_milli(self, job: Job) -> int:
        return job.fewest_gpus * self._demands[job.job_id]

    def _grow(self, sizes: dict[str, int], free: int) -> None:
        """Divide what is free among elastic jobs, a device each in turn."""
        growing = [job_id for job_id in sizes if job_id in self._requested]
        while growing:
            still = []
            for job_id in growing:
                gpus, _, most = self._requested[job_id]
                step = self._jobs[job_id].gpus_per_task
                needed = step * self._demands[job_id]
                if sizes[job_id] + step <= (most or gpus) and needed <= free:
                    sizes[job_id] += step
                    free -= needed
                    still.append(job_id)
            growing = still

    def _limited(self, job_id: str, most_gpus: int) -> Job:
        """Return a job that, if it is elastic, runs on at most so many of its devices."""
        job = self._jobs[job_id]
        if job_id not in self._requested:
            return job
        gpus, fewest, most = self._requested[job_id]
        if most_gpus < (most or gpus):
            gpus, fewest, most = min(gpus, most_gpus), fewest or gpus, most_gpus
            if fewest >= most_gpus:
                fewest = most = 0
        if (gpus, fewest, most) == (job.gpus, job.min_gpus, job.max_gpus):
            return job
        return replace(job, gpus=gpus, min_gpus=fewest, max_gpus=most)

    # Explanations ---------------------------------------------------------------------------

    def why_never(self, job: Job, status: JobStatus) -> str:
        """Return why the user of a job may never hold what it needs; "" if it may."""
        least_milli = job.fewest_gpus * self._demand_milli(job, status) if self.limits(job) else 0
        return why_never(job, least_milli, self.quotas)

    def closed(self) -> Iterator[Job]:
        """Return the pending jobs that are not in the policy's queue."""
        self.admit()
        for user, waiting in self._waiting.items():
            yield from (job for job in waiting if job.job_id not in self._admitted.get(user, ()))

    def closed_reason(self, job: Job) -> str:
        """Return why a pending job is not in the policy's queue, in a sentence; "" if it is."""
        self.admit()
        user, limit = job.user, self.quotas.devices_milli(job.user)
        is_waiting = user in self._waiting and job.job_id in self._waiting[user]
        if limit is None or not is_waiting or job.job_id in self._admitted.get(user, ()):
            return ""
        need, held = self._need_milli(job), self._held_milli[user]
        if never := why_never(job, need, self.quotas):
            return never
        text = (
            f"user {user} holds {held / FULL_DEVICE_MILLI:g} of {devices_text(limit)} of the quota"
        )
        if held + need <= limit:
            return f"{text}, and jobs before it need the rest"
        return f"{text}, and it needs {need / FULL_DEVICE_MILLI:g}" if held < limit else text
