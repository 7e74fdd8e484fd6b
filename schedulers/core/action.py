"""What a policy can want done."""

from __future__ import annotations

from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation


class Reserve(NamedTuple):
    """Keep devices for a waiting job's gang, or for some of its members, until a time.

    Then it is pending as before, unless it was started or reserved anew.
    """

    job_id: str
    allocations: tuple[Allocation, ...]
    until_s: float


class Start(NamedTuple):
    """Run a waiting job; one grant a member. What it had reserved is free again."""

    job_id: str
    allocations: tuple[Allocation, ...]


class Preempt(NamedTuple):
    """Let a running or paused job write a checkpoint and go back into the queue.

    One that is reserved gives up what it reserved.
    """

    job_id: str


class Resize(NamedTuple):
    """Give a running job other shares or more or fewer members; it keeps running."""

    job_id: str
    allocations: tuple[Allocation, ...]


class Migrate(NamedTuple):
    """Let a running job write a checkpoint and go on elsewhere at once."""

    job_id: str
    allocations: tuple[Allocation, ...]


class Pause(NamedTuple):
    """Stop a running job where it is: it keeps its memory, others may have its compute."""

    job_id: str


class Resume(NamedTuple):
    """Let a paused job go on, with the compute that it had."""

    job_id: str


class Reject(NamedTuple):
    """Refuse a pending job for good, and say why."""

    job_id: str
    why: str


class Wake(NamedTuple):
    """Decide again at a time, also if nothing happens until then."""

    at_s: float


Action = Reserve | Start | Preempt | Resize | Migrate | Pause | Resume | Reject | Wake
