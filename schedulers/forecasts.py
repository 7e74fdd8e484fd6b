"""What is foretold of jobs: asked for in one batch, remembered, and never in a policy's way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from presage.schedulers.cluster import Cluster
from presage.schedulers.grant import WHOLE
from presage.schedulers.job import Job


class Outlook(NamedTuple):
    """What is foretold of a job on a kind of device, on its own there.

    Attributes
    ----------
    runtime_s : float
        Of the whole job, in the median; infinite where nothing is known.
    compute_milli : int
        Thousandths of a device that each member keeps busy.
    memory_bytes : int
        What each member takes of a device at most, with the certainty that was asked for.
    """

    runtime_s: float
    compute_milli: int
    memory_bytes: int


class Forecaster(Protocol):
    """Whoever foretells: a service, a release in this process, a table, an oracle, nobody."""

    def outlooks(self, asked: Sequence[tuple[Job, str]]) -> Sequence[Outlook | None]:
        """Of each job on a kind of device, in order; None where nothing can be said."""
        ...


class Forecasts:
    """Forecasts for a cluster's kinds of devices.

    What is missing, infinite or not a number is a whole device, for as long as it takes
    (DESIGN.md): a policy never meets an exception, and packs nothing beside such a job.
    """

    def __init__(self, forecaster: Forecaster, cluster: Cluster) -> None:
        self._forecaster = forecaster
        self._known: dict[tuple[str, str], Outlook] = {}
        self._memory = {node.kind: node.memory_bytes for node in reversed(cluster.nodes)}

    def learn(self, jobs: Iterable[Job]) -> None:
        """Ask for all of these, on every kind, at once."""
        asked = [
            (job, kind)
            for job in jobs
            for kind in self._memory
            if (job.job_id, kind) not in self._known and (not job.kinds or kind in job.kinds)
        ]
        if asked:
            told = self._forecaster.outlooks(asked)
            for (job, kind), outlook in zip(asked, told, strict=True):
                self._known[job.job_id, kind] = self._sound(outlook, kind)

    def outlook(self, job: Job, kind: str) -> Outlook:
        """Of a job on a kind of device."""
        if (job.job_id, kind) not in self._known:
            self.learn((job,))
        return self._known.get((job.job_id, kind)) or self._sound(None, kind)

    def runtime_s(self, job: Job) -> float:
        """Of a job on the kind where it takes least; infinite where nothing is known."""
        return min(self.outlook(job, kind).runtime_s for kind in self._memory)

    def _sound(self, outlook: Outlook | None, kind: str) -> Outlook:
        whole = Outlook(math.inf, WHOLE, self._memory[kind])
        if outlook is None:
            return whole
        runtime_s, compute_milli, memory_bytes = outlook
        known = math.isfinite(compute_milli) and math.isfinite(memory_bytes)
        if not known or not compute_milli >= 0 or not memory_bytes > 0:
            compute_milli, memory_bytes = whole.compute_milli, whole.memory_bytes
        return Outlook(
            runtime_s if math.isfinite(runtime_s) and runtime_s >= 0 else math.inf,
            min(max(1, int(compute_milli)), WHOLE),
            min(int(memory_bytes), whole.memory_bytes),
        )
