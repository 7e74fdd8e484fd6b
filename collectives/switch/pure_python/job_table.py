"""Jobs that are registered at the pure-Python aggregator, and those that were."""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.protocol import Code
from presage.collectives.switch.pure_python.counters import Counters
from presage.collectives.switch.pure_python.job import Job, Member, Outlet
from presage.collectives.switch.pure_python.slots import Slot

Refusal = tuple[Code, str]


class JobTable:
    """Table of jobs by name. It keeps the epoch of a job that has ended while it has room.

    Attributes
    ----------
    fence : int
        Lowest epoch that is accepted.
    """

    def __init__(self, options: SwitchOptions, slots: list[Slot], counts: Counters) -> None:
        self.fence = options.fence
        self._options, self._slots, self._counts = options, slots, counts
        self._jobs: dict[str, Job] = {}  # the least recently registered first

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def admit(
        self, name: str, place: tuple[int, int], token: bytes, epoch: int, outlet: Outlet
    ) -> Member | Refusal:
        """Register a rank, or return why not.

        Parameters
        ----------
        place : (int, int)
            Rank, and number of ranks.
        """
        rank, ranks = place
        job = self._find(name)
        if job is None:
            return Code.FULL, f"the switch has {len(self._jobs)} jobs"
        if refusal := self._why_not(job, ranks, token, epoch):
            return refusal
        if job.is_registered and ranks != len(job.members):
            reason = f"the job has {ranks} ranks since epoch {epoch}"
            for member in filter(None, list(job.members)):
                member.outlet.end(Code.SUPERSEDED, reason)
        if not job.is_registered:
            job.reset(ranks, token)
        if former := job.members[rank]:
            former.outlet.end(Code.SUPERSEDED, f"rank {rank} registered again")
            if not job.is_registered:
                job.reset(ranks, token)
        job.epoch = epoch
        self._jobs[name] = self._jobs.pop(name)
        found = job.members[rank] = Member(job, rank, outlet)
        return found

    def _find(self, name: str) -> Job | None:
        """Return the job; make room for a new one by forgetting one that is not registered."""
        if name in self._jobs:
            return self._jobs[name]
        if len(self._jobs) == self._options.max_jobs:
            forgotten = next((n for n, job in self._jobs.items() if not job.is_registered), None)
            if forgotten is None:
                return None
            del self._jobs[forgotten]
        self._jobs[name] = Job(name, self._options, self._slots, self._counts)
        return self._jobs[name]

    def _why_not(self, job: Job, ranks: int, token: bytes, epoch: int) -> Refusal | None:
        if job.is_registered and not hmac.compare_digest(token, job.token):
            return Code.NAME_IN_USE, f"another job is registered as {job.name}"
        lowest = max(job.epoch, self.fence)
        if epoch < lowest:
            return Code.OLD_EPOCH, f"epoch {epoch} is below {lowest}"
        if job.is_registered and ranks != len(job.members) and epoch == job.epoch:
            reason = f"the job has {len(job.members)} ranks at epoch {epoch}, not {ranks}"
            return Code.UNEQUAL, reason
        return None
