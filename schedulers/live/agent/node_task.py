"""A task as its node's agent sees it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb

Name = tuple[str, int]  # of a job's attempt
Occupancy = list[tuple[Name, tuple[Allocation, ...], bool]]
PACE_S = 60.0  # a pace is that of the last so many seconds, if nothing has changed
LEAST_PACE_S = 3.0  # of fewer it cannot be told
LEAST_MARKS = 4  # of fewer nobody can tell how they scatter


class Step(Enum):
    """How far a task is, by what the agent knows of its process."""

    WAITING = "waiting"  # for room; there is no process
    GRANTED = "allocated"  # it has devices; its folder is made once they are clear
    STARTED = "started"  # it has a folder: its process comes, runs, or is being ended
    ENDED = "ended"


class Seen(NamedTuple):
    """What was seen of a task's process.

    Attributes
    ----------
    ran_s : float
        Since its process was started.
    done, saved : float or None
        Parts of the job's iterations, as it reports them; None if it does not.
    usage_milli : float or None
        Thousandths of its device since it was last looked at.
    exit : Exit or None
        How it ended.
    """

    ran_s: float
    done: float | None
    saved: float
    usage_milli: float | None
    memory_bytes: int
    peak_memory_bytes: int
    exit: pb.Exit | None = None


@dataclass(slots=True)
class NodeTask:
    """A task that is to run here, runs, or ran.

    Attributes
    ----------
    came_s : float
        When it was ordered.
    ordered : bool
        Whether the controller's last orders have it.
    allocations : tuple of Grant
        By the numbers of the node's devices; what it has of them, or had.
    end : str
        Why it is to end; "" while it is not.
    checkpoint : bool
        Whether it is to save its state first.
    rest_s : float or None
        Seconds that it still takes, as was judged at the last look; None of one nobody looked at.
    why : str
        What was last done about it, in a sentence.
    unmade_s : float
        Since when its folder cannot be made; 0 if it could, or nobody has tried.
    unlaunched_s : float
        As ``unmade_s``, of its shim.
    begun : bool
        Whether its process was seen to run.
    in_part : bool
        Whether an earlier agent saw a part of it, of which nothing below is known.
    steady : bool
        Whether it has had one share all the time, and was never paused.
    busy_s : float
        Device-seconds that it kept its device busy.
    first, last : tuple of (float, float), or None
        When it was first seen to have done something, and last: seconds since its start, and the
        part that was done.
    occupancy : list of (Name, tuple of Grant, bool)
        Itself and who is on its devices, with what, and whether paused.
    earlier_per_s : float
        Its pace before others came or went, with the same share; 0 for none.
    beside : dict of (str, int) to float
        Seconds that others were on its device.
    marks : deque of (float, float)
        As ``last``, of the last ``PACE_S``, or the last four, with the same company.
    """

    order: pb.TaskOrder
    submitted: SubmittedJob
    came_s: float
    ordered: bool = True
    step: Step = Step.WAITING
    allocations: tuple[Allocation, ...] = ()
    paused: bool = False
    end: str = ""
    checkpoint: bool = True
    late: bool = False
    rest_s: float | None = None
    why: str = ""
    seen: Seen | None = None
    unmade_s: float = 0.0
    unlaunched_s: float = 0.0
    begun: bool = False
    in_part: bool = False
    steady: bool = True
    busy_s: float = 0.0
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    occupancy: Occupancy = field(default_factory=list)
    earlier_per_s: float = 0.0
    beside: dict[Name, float] = field(default_factory=dict)
    marks: deque[tuple[float, float]] = field(default_factory=deque)

    @property
    def name(self) -> Name:
        """Job and attempt."""
        return self.submitted.job.job_id, self.order.attempt

    @property
    def per_s(self) -> float:
        """Part of the job that it does each second, of late; 0 where that cannot be told yet.

        Where others came or went a moment ago it is what it was with those who were there.
        """
        return self._measured_per_s or self.earlier_per_s

    @property
    def most_per_s(self) -> float:
        """The fastest that it may be: two standard errors above ``per_s``; infinite if unknown.

        A pace is a sum of strides from mark to mark, and each is off by chance.
        """
        per_s = self._measured_per_s
        if not per_s or len(self.marks) < LEAST_MARKS:
            return math.inf
        off = [
            later - done - per_s * (later_s - at_s)
            for (at_s, done), (later_s, later) in pairwise(self.marks)
        ]
        strides = len(off)
        error = math.sqrt(sum(one * one for one in off) * strides / (strides - 1))
        return per_s + 2 * error / (self.marks[-1][0] - self.marks[0][0])

    @property
    def _measured_per_s(self) -> float:
        if not self.marks:
            return 0.0
        (first_s, first), (last_s, last) = self.marks[0], self.marks[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= LEAST_PACE_S else 0.0

    def begin_anew(self, occupancy: Occupancy) -> None:
        """It has another share, or other company: from now on it goes at another pace."""
        same_share = bool(self.occupancy) and self.occupancy[0] == occupancy[0]
        self.earlier_per_s = self.per_s if same_share else 0.0
        self.occupancy = occupancy
        self.marks.clear()

    @property
    def runtime_s(self) -> float:
        """Since its process was started; 0 before."""
        return 0.0 if self.seen is None else self.seen.ran_s
