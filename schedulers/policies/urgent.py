"""How policies keep to it that latency-sensitive jobs go before best-effort ones."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

from presage.schedulers.grant import Grant
from presage.schedulers.job import Job
from presage.schedulers.requests import covers, members, suitable
from presage.schedulers.room import Room
from presage.schedulers.state import State


class PassedOver:
    """Latency-sensitive jobs that a decision passed over though there are enough devices for them.

    Best-effort jobs may not have these devices, though the policy would not place the others
    there: a gang, say, that it keeps on one node.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._jobs: list[Job] = []
        self._asked: set[Hashable] = set()  # what jobs request that were looked at

    def add(self, job: Job) -> None:
        """A job that was not started; it counts if it is latency-sensitive."""
        if not job.latency_sensitive:
            return
        cluster, gang = self._state.cluster, members(job, self._state.cluster)
        asked = gang, job.compute_milli, job.memory_bytes, job.kinds
        if asked not in self._asked:
            self._asked.add(asked)
            if suitable(job, cluster, self._room).sum() >= gang:
                self._jobs.append(job)

    @cached_property
    def _room(self) -> Room:
        return self._state.room()

    def forbid(self, job: Job, grants: tuple[Grant, ...]) -> bool:
        """Whether a job may not be started so."""
        return (
            bool(self._jobs)
            and not job.latency_sensitive
            and any(covers(g, one, self._state.cluster) for g in grants for one in self._jobs)
        )
