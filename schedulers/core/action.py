"""Actions that a policy can decide."""

from __future__ import annotations

from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation


class Reserve(NamedTuple):
    """Hold devices for a waiting job's gang, or for some of its members, until a time.

    Then the job is pending again, unless it was started or its reservation was renewed.
    """

    job_id: str
    allocations: tuple[Allocation, ...]
    until_s: float


class Start(NamedTuple):
    """Start a waiting job, with one allocation for each member; its reservation is released."""

    job_id: str
    allocations: tuple[Allocation, ...]


class Preempt(NamedTuple):
    """Checkpoint a running or paused job and return it to the queue.

    A reserved job loses its reservation.
    """

    job_id: str


class Resize(NamedTuple):
    """Change the shares or the number of members of a running job; it keeps running."""

    job_id: str
    allocations: tuple[Allocation, ...]


class Migrate(NamedTuple):
    """Checkpoint a running job and continue it on other devices at once."""

    job_id: str
    allocations: tuple[Allocation, ...]


class Pause(NamedTuple):
    """Stop a running job in place: it keeps its memory and frees its compute."""

    job_id: str


class Resume(NamedTuple):
    """Continue a paused job with the compute that it had."""

    job_id: str


class Reject(NamedTuple):
    """Reject a pending job for good, with a reason."""

    job_id: str
    why: str


class Wake(NamedTuple):
    """Request another decision at a time, even if no event occurs until then."""

    at_s: float


Action = Reserve | Start | Preempt | Resize | Migrate | Pause | Resume | Reject | Wake
