"""Agreed state of a switch domain, and the table of decisions that each job gets from it.

A view is slow state: it changes when a job comes, leaves or changes its rhythm. A decision is a
lookup of an AllReduce number in the table of the job, so it needs no clock and no message. Numbers
outside the window of a table run by ring. That bounds how long a view is used after the controller
has failed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from presage.collectives.core.demand import JobDemand


class Reason(enum.IntEnum):
    """Reason of a decision. Odd values allow the switch, even values mean ring."""

    OUTSIDE_WINDOW = 0
    NO_OTHER_ARRIVAL = 1  # I2
    IN_USE = 2  # I1
    HIGHEST_SCORE = 3  # I3
    LOWER_SCORE = 4  # I3
    RESERVED = 5  # of the jobs that cannot be predicted, among those with the highest scores
    SINGLE_RANK = 6
    REVOKED = 8  # on the way from one view to the next

    @property
    def is_allowed(self) -> bool:
        """Whether the AllReduce runs on the switch."""
        return bool(self & 1)


@dataclass(frozen=True, slots=True)
class JobView:
    """Decisions of one job in one epoch.

    Attributes
    ----------
    epoch : int
        Number of the view; 0 is the view that each rank starts with, in which all run by ring.
    first_number : int
        Number of the AllReduce that the first entry is for; all ranks of the job have started it
        when a view with a later window than the previous one is planned.
    decisions : bytes
        A ``Reason`` for each AllReduce of the window.
    """

    epoch: int
    first_number: int = 0
    decisions: bytes = b""

    def is_allowed(self, number: int) -> bool:
        """Return whether this AllReduce runs on the switch."""
        index = number - self.first_number
        return 0 <= index < len(self.decisions) and self.decisions[index] & 1 == 1

    def reason(self, number: int) -> Reason:
        """Return the reason of the decision."""
        index = number - self.first_number
        is_inside = 0 <= index < len(self.decisions)
        return Reason(self.decisions[index]) if is_inside else Reason.OUTSIDE_WINDOW

    def next_allowed(self, number: int) -> int | None:
        """Return the first AllReduce from ``number`` on that runs on the switch, or None."""
        for start in range(max(0, number - self.first_number), len(self.decisions), _STEP):
            index = self.decisions[start : start + _STEP].translate(_PARITY).find(1)
            if index >= 0:
                return self.first_number + start + index
        return None

    def intersection(self, other: JobView) -> JobView:
        """Return a view that allows only what both views allow: it grants nothing."""
        numbers = range(self.first_number, self.first_number + len(self.decisions))
        kept = bytes(
            self.decisions[index]
            if not self.decisions[index] & 1 or other.is_allowed(number)
            else Reason.REVOKED
            for index, number in enumerate(numbers)
        )
        return replace(self, decisions=kept)

    def revokes(self, previous: JobView) -> bool:
        """Return whether this view denies an AllReduce that the previous one allows.

        Numbers before this window are past: a window begins at a number that the job has started.
        """
        end = previous.first_number + len(previous.decisions)
        numbers = range(max(self.first_number, previous.first_number), end)
        return any(previous.is_allowed(n) and not self.is_allowed(n) for n in numbers)

    def before(self, number: int) -> JobView:
        """Return a view without the decisions for this number and all later ones."""
        return replace(self, decisions=self.decisions[: max(0, number - self.first_number)])


_STEP = 256  # decisions that are searched at a time
_PARITY = bytes(code & 1 for code in range(256))

RING_ONLY = JobView(0)  # what each rank starts with


@dataclass(frozen=True, slots=True)
class View:
    """Jobs of a switch domain with their rhythms and windows of numbers.

    Attributes
    ----------
    epoch : int
        Number of the view.
    slots : tuple of (str, int)
        Number of jobs that each switch can aggregate for at a time.
    jobs : tuple of JobDemand
        Jobs that use these switches, with unique ids.
    first_numbers : tuple of int
        First AllReduce number of each job's window.
    window : int
        Number of AllReduces of each job in the view.
    kept : tuple of bytes
        Decisions at the start of each job's table, which are those of the view before: its ranks
        start these AllReduces before they have adopted this view. Empty for none.
    """

    epoch: int
    slots: tuple[tuple[str, int], ...]
    jobs: tuple[JobDemand, ...]
    first_numbers: tuple[int, ...]
    window: int
    kept: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        known = dict(self.slots)
        if len({job.job_id for job in self.jobs}) != len(self.jobs):
            raise ValueError("two jobs of a view have the same id")
        if len(self.first_numbers) != len(self.jobs):
            raise ValueError(f"{len(self.jobs)} jobs, {len(self.first_numbers)} first numbers")
        if self.kept and len(self.kept) != len(self.jobs):
            raise ValueError(f"{len(self.jobs)} jobs, {len(self.kept)} kept decisions")
        if any(slots < 0 for slots in known.values()) or self.window < 0:
            raise ValueError("slots and window must be at least 0")
        for job in self.jobs:
            if unknown := set(job.switches) - set(known):
                raise ValueError(f"job {job.job_id!r}: unknown switch {min(unknown)!r}")
