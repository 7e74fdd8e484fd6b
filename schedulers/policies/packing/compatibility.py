"""Who may go beside whom, by what is foretold: remembered, because it does not change."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from presage.errors import ConfigError
from presage.schedulers.core.capacity.shared_devices import MOST_KNOWN, Company
from presage.schedulers.core.forecasts import Forecasts, Outlook
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State

if TYPE_CHECKING:
    from presage.schedulers.policies.packing.open_places import Places

BREADTH = 256  # companies that a job looks at, at once


class Limits(NamedTuple):
    """How much of a device is given away; see ``packing.Packing``."""

    most_slowdown: float
    most_members: int
    overcommit: float

    def check(self, policy: str) -> None:
        """Each is a finite number of at least 1.

        Raises
        ------
        ConfigError
            Names the policy and the limit.
        """
        for name, value in self._asdict().items():
            if not 1 <= value < math.inf:
                raise ConfigError(f"{policy}: {name}={value}, must be a finite number >= 1")

    def needs(self, outlook: Outlook) -> tuple[int, int]:
        """Thousandths of a device's compute, and bytes of its memory, that a job is granted."""
        return math.ceil(outlook.compute_milli / self.overcommit), outlook.memory_bytes


@dataclass(eq=False, slots=True)
class Neighbour:
    """Jobs of a shape, as what they would do beside others.

    Attributes
    ----------
    slowest : dict of Company to float
        Companies that they may join, and how slow whoever is slowed most becomes there.
    joins, looked_at : int
        Bits of the numbers of these companies, and of all of which that is known.
    """

    slowest: dict[Company, float] = field(default_factory=dict)
    joins: int = 0
    looked_at: int = 0


class Neighbours:
    """Of each shape of jobs that was looked at, which companies it may join.

    Where more than ``BREADTH`` companies are new to a shape, and it has no place yet, it looks at
    so many that have room for it, of those that have most compute left.

    Attributes
    ----------
    of : dict
        What is known, by shape.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: Sequence[Company] = ()
        self.of: dict[Hashable, Neighbour] = {}

    def look(
        self, shapes: Iterable[Hashable], state: State, places: Places, forecasts: Forecasts
    ) -> list[Hashable]:
        """Those of the shapes that may have a place, once all that is new to them is asked for."""
        known = state.shared.known
        if known is not self._known or len(self.of) > MOST_KNOWN:
            self._known, self.of = known, {}
        looked: list[tuple[Hashable, Neighbour]] = []
        meetings: list[tuple[Neighbour, Company, Job]] = []
        roomiest: list[Company] = []
        for shape in shapes:
            one = self.of.get(shape)
            if one is None:
                one = self.of[shape] = Neighbour()
            looked.append((shape, one))
            new = places.present & ~one.looked_at
            if not new:
                continue
            job = state.pending.one_of(shape)
            if new.bit_count() <= BREADTH:
                at = self._with_room(job, one, _numbered(known, new), forecasts)
            elif not one.joins & places.present:
                roomiest = roomiest or sorted(places.companies, key=_by_room)
                at = islice(self._with_room(job, one, roomiest, forecasts), BREADTH)
            else:
                continue
            meetings += ((one, company, job) for company in at)
        told = forecasts.slowdowns([(at.kind, (*at.jobs, job)) for _, at, job in meetings])
        for (one, company, _), slowdowns in zip(meetings, told, strict=True):
            if max(slowdowns) <= self._limits.most_slowdown:
                one.slowest[company] = max(slowdowns)
                one.joins |= 1 << company.number
        present = places.present
        return [shape for shape, one in looked if one.joins & present]

    def _with_room(
        self, job: Job, one: Neighbour, companies: Iterable[Company], forecasts: Forecasts
    ) -> Iterator[Company]:
        """Those of companies that are new to a shape, which it then knows."""
        needs: dict[str, tuple[int, int]] = {}
        for company in companies:
            bit = 1 << company.number
            if one.looked_at & bit:
                continue
            one.looked_at |= bit
            if len(company.jobs) >= self._limits.most_members:
                continue
            if job.kinds and company.kind not in job.kinds:
                continue
            if company.kind not in needs:
                needs[company.kind] = self._limits.needs(forecasts.outlook(job, company.kind))
            compute_milli, memory_bytes = needs[company.kind]
            if company.compute_milli >= compute_milli and company.memory_bytes >= memory_bytes:
                yield company


def _numbered(known: Sequence[Company], bits: int) -> Iterator[Company]:
    while bits:
        bit = bits & -bits
        bits ^= bit
        yield known[bit.bit_length() - 1]


def _by_room(company: Company) -> tuple[int, int]:
    return -company.compute_milli, company.number
