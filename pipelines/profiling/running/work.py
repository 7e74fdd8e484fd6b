"""One run to make: a job alone, or several together, and the share that each is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from presage.features.device.device import Share

Row = dict[str, Any]

# Sharing without a part of one's own: the members take turns, or get what the threads can use.
UNDIVIDED = ("exclusive", "time-slice", "mig", "cpu-quota")


@dataclass(frozen=True, slots=True)
class Work:
    """A run of one job or more, by their names in the zoo.

    Attributes
    ----------
    jobs : tuple of str
        In sorted order.
    shares : tuple of Share
        One per job.
    window_s : float
        Least time to step for.
    solo_s : tuple of float
        Step time of each job alone, as far as the campaign knows; () for a job alone.
    """

    jobs: tuple[str, ...]
    shares: tuple[Share, ...]
    window_s: float
    solo_s: tuple[float, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether it is a single job."""
        return len(self.jobs) == 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave: rows of one table, and what a person should know of it."""

    work: Work
    rows: tuple[Row, ...]
    failed: bool
    foreign_load: float | None
    messages: tuple[str, ...]
    taken_s: float


def colocation_id(jobs: Sequence[str], device_kind: str, shares: Sequence[Share] = ()) -> str:
    """Name of a co-location: its members in sorted order, the device, and how it is divided."""
    mode = shares[0].mode if shares else "time-slice"
    if mode in UNDIVIDED:
        return f"{' + '.join(sorted(jobs))} @ {device_kind}"
    parts = sorted(f"{job} {share.fraction:.0%}" for job, share in zip(jobs, shares, strict=True))
    return f"{' + '.join(parts)} @ {device_kind} by {mode}"
