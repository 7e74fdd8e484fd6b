"""How policies keep to it that latency-sensitive jobs go before best-effort ones."""

from __future__ import annotations

from presage.schedulers.grant import Grant
from presage.schedulers.job import Job
from presage.schedulers.requests import covers, suitable
from presage.schedulers.state import State


class PassedOver:
    """Latency-sensitive jobs that a decision passed over though there are enough devices for them.

    Best-effort jobs may not have these devices, though the policy would not place the others
    there: a gang, say, that it keeps on one node.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._jobs: list[Job] = []

    def add(self, job: Job) -> None:
        """A job that was not started; it counts if it is latency-sensitive."""
        if job.latency_sensitive:
            room = self._state.room()
            if suitable(job, self._state.cluster, room).sum() >= job.gpus:
                self._jobs.append(job)

    def forbid(self, job: Job, grants: tuple[Grant, ...]) -> bool:
        """Whether a job may not be started so."""
        return (
            bool(self._jobs)
            and not job.latency_sensitive
            and any(covers(g, one, self._state.cluster) for g in grants for one in self._jobs)
        )
