"""Description of one run: one job, or several co-located, and the share of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from presage.features.device.device import Share

Row = dict[str, Any]

# Modes that do not partition the device: members take turns, or use what their threads can.
UNDIVIDED = ("exclusive", "time-slice", "mig", "cpu-quota")


@dataclass(frozen=True, slots=True)
class Work:
    """A run of one or more jobs, by their names in the zoo.

    Attributes
    ----------
    jobs : tuple of str
        In sorted order.
    shares : tuple of Share
        One per job.
    window_s : float
        Minimum time of the window.
    solo_s : tuple of float
        Solo step time of each job, if the campaign has it; () for a single job.
    """

    jobs: tuple[str, ...]
    shares: tuple[Share, ...]
    window_s: float
    solo_s: tuple[float, ...] = ()

    @property
    def solo(self) -> bool:
        """Whether the run has a single job."""
        return len(self.jobs) == 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run: rows of one table, and messages for the user."""

    work: Work
    rows: tuple[Row, ...]
    failed: bool
    foreign_load: float | None
    messages: tuple[str, ...]
    duration_s: float


def colocation_id(jobs: Sequence[str], device_kind: str, shares: Sequence[Share] = ()) -> str:
    """Return the name of a co-location: sorted members, the device, and how it is divided."""
    mode = shares[0].mode if shares else "time-slice"
    if mode in UNDIVIDED:
        return f"{' + '.join(sorted(jobs))} @ {device_kind}"
    parts = sorted(f"{job} {share.fraction:.0%}" for job, share in zip(jobs, shares, strict=True))
    return f"{' + '.join(parts)} @ {device_kind} by {mode}"
