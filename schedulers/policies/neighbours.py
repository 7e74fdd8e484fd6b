"""Who may go beside whom, by what is foretold: remembered, because it does not change."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from presage.schedulers.forecasts import Forecasts, Outlook
from presage.schedulers.job import Job
from presage.schedulers.shared_devices import MOST_KNOWN, Company
from presage.schedulers.state import Pending, Shared

BREADTH = 256  # companies that a job looks at, at once


class Limits(NamedTuple):
    """How much of a device is given away; see ``packing.Packing``."""

    most_slowdown: float
    most_members: int
    overcommit: float

    def needs(self, outlook: Outlook) -> tuple[int, int]:
        """Thousandths of a device's compute, and bytes of its memory, that a job is granted."""
        return math.ceil(outlook.compute_milli / self.overcommit), outlook.memory_bytes


@dataclass(eq=False, slots=True)
class Neighbour:
    """Jobs of a shape, as what they would do beside others.

    Attributes
    ----------
    job : Job
        One of them.
    slowest : dict of Company to float
        Companies that they may join, and how slow whoever is slowed most becomes there.
    joins : int
        Bits of these companies' numbers.
    """

    job: Job
    slowest: dict[Company, float] = field(default_factory=dict)
    joins: int = 0
    looked_at: int = 0  # of the companies that are known


class Neighbours:
    """Of each shape of jobs that was looked at, which companies it may join.

    Jobs that need several devices join nobody. A shape looks once at each company, as long as no
    more than ``BREADTH`` of them are new to it; else at so many that have most compute left.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: Sequence[Company] = ()
        self._of: dict[Hashable, Neighbour] = {}

    def look(
        self, shapes: Iterable[Hashable], pending: Pending, shared: Shared, forecasts: Forecasts
    ) -> dict[Hashable, Neighbour]:
        """These shapes, once all that is new to them is asked for, at once."""
        known = shared.known
        if known is not self._known or len(self._of) > MOST_KNOWN:
            self._known, self._of = known, {}
        found: dict[Hashable, Neighbour] = {}
        meetings: list[tuple[Neighbour, Company]] = []
        roomiest: list[Company] = []
        for shape in shapes:
            one = self._of.get(shape)
            if one is None:
                one = self._of[shape] = Neighbour(pending.next_of(shape))
            found[shape] = one
            if one.looked_at < len(known) and one.job.gpus == 1:
                new: Sequence[Company] = known[one.looked_at :]
                if len(new) > BREADTH:
                    roomiest = roomiest or heapq.nsmallest(BREADTH, shared.devices, key=_by_room)
                    new = roomiest
                meetings += ((one, company) for company in self._with_room(one.job, new, forecasts))
                one.looked_at = len(known)
        told = forecasts.slowdowns([(at.kind, (*at.jobs, one.job)) for one, at in meetings])
        for (one, company), slowdowns in zip(meetings, told, strict=True):
            if max(slowdowns) <= self._limits.most_slowdown:
                one.slowest[company] = max(slowdowns)
                one.joins |= 1 << company.number
        return found

    def _with_room(
        self, job: Job, companies: Iterable[Company], forecasts: Forecasts
    ) -> Iterator[Company]:
        needs: dict[str, tuple[int, int]] = {}
        for company in companies:
            if len(company.jobs) >= self._limits.most_members:
                continue
            if job.kinds and company.kind not in job.kinds:
                continue
            if company.kind not in needs:
                needs[company.kind] = self._limits.needs(forecasts.outlook(job, company.kind))
            compute_milli, memory_bytes = needs[company.kind]
            if company.compute_milli >= compute_milli and company.memory_bytes >= memory_bytes:
                yield company


def _by_room(company: Company) -> tuple[int, int]:
    return -company.compute_milli, company.number
