"""Demand of a job for a switch: when its AllReduces arrive, and how large they are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from presage.collectives.core.costs import Link, inc_s, time_saved_s


@dataclass(frozen=True, slots=True)
class Call:
    """One AllReduce of an iteration.

    Attributes
    ----------
    offset_s : float
        Predicted time from the start of the iteration to the start of the AllReduce.
    size_bytes : int
        Size of the tensor.
    shift_s : float, optional
        Time by which the following AllReduces start earlier if this one runs on the switch. None if
        it is unknown: then it is the time that the AllReduce saves itself.
    """

    offset_s: float
    size_bytes: int
    shift_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobDemand:
    """AllReduces of a job, predicted from its period and the position of each in an iteration.

    Times are those of a job whose AllReduces all run by ring. Each one on the switch moves what
    follows to an earlier time, by :meth:`shift_s`.

    AllReduces are numbered over the whole job. ``anchor_number`` is the first one of an iteration
    that starts at ``anchor_s`` on the controller's clock; only the controller compares clocks, and
    only when it makes a view.

    Attributes
    ----------
    job_id : str
        Unique id, which also breaks ties.
    ranks : int
        Number of ranks, at least 1.
    switches : tuple of str
        Switches that aggregate for the job: it uses all of them or none.
    link : Link
        Slowest link between its ranks.
    period_s : float
        Predicted duration of an iteration. 0, NaN and infinity mean that it cannot be predicted.
    calls : tuple of Call
        AllReduces of an iteration, in their order; at least one.
    anchor_number : int
        Number of an AllReduce that is the first one of its iteration.
    anchor_s : float
        Predicted start of that iteration.
    margin_s : float
        Half of the width of the interval of each predicted arrival.
    """

    job_id: str
    ranks: int
    switches: tuple[str, ...]
    link: Link
    period_s: float
    calls: tuple[Call, ...]
    anchor_number: int = 0
    anchor_s: float = 0.0
    margin_s: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"job {self.job_id!r}: ranks={self.ranks}, must be at least 1")
        if not self.calls:
            raise ValueError(f"job {self.job_id!r}: no AllReduce in an iteration")
        if not self.switches:
            raise ValueError(f"job {self.job_id!r}: no switch; it is not part of any view")
        if any(call.size_bytes < 0 for call in self.calls):
            raise ValueError(f"job {self.job_id!r}: an AllReduce has a negative size")

    @property
    def is_predictable(self) -> bool:
        """Whether arrivals have finite predicted times that increase from call to call."""
        offsets = [call.offset_s for call in self.calls]
        times = [self.period_s, self.anchor_s, self.margin_s, *offsets]
        if not all(math.isfinite(time) for time in times):
            return False
        is_ordered = all(a <= b for a, b in itertools.pairwise(offsets))
        span_s = offsets[-1] - offsets[0]
        return is_ordered and self.margin_s >= 0 and self.period_s > 0 and span_s <= self.period_s

    def call(self, number: int) -> Call:
        """Return the AllReduce of an iteration that has this number."""
        return self.calls[(number - self.anchor_number) % len(self.calls)]

    def arrival_s(self, number: int) -> float:
        """Return the predicted start of an AllReduce of a predictable job, all by ring."""
        iteration, position = divmod(number - self.anchor_number, len(self.calls))
        return self.anchor_s + iteration * self.period_s + self.calls[position].offset_s

    def shift_s(self, number: int) -> float:
        """Return by how much later AllReduces start earlier if this one runs on the switch."""
        known_s = self.call(number).shift_s
        return self.time_saved_s(number) if known_s is None else known_s

    def inc_s(self, number: int) -> float:
        """Return the duration of an AllReduce on the switch."""
        return inc_s(self.ranks, self.call(number).size_bytes, self.link)

    def time_saved_s(self, number: int) -> float:
        """Return what an AllReduce saves on the switch over a ring."""
        return time_saved_s(self.ranks, self.call(number).size_bytes, self.link)

    @property
    def largest_saving_s(self) -> float:
        """Largest time that an AllReduce of an iteration saves."""
        return max(time_saved_s(self.ranks, call.size_bytes, self.link) for call in self.calls)
