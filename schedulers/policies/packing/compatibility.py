"""Who may go beside whom, by what is foretold: remembered, because it does not change."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from presage.errors import ConfigError
from presage.schedulers.core.capacity.shared_devices import MOST_KNOWN, Occupancy
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.state import State

if TYPE_CHECKING:
    from presage.schedulers.policies.packing.open_places import SharedCapacity

BREADTH = 256  # companies that a job looks at, at once


class Limits(NamedTuple):
    """Limits of co-location on a device, as ``PolicyNeeds`` declares them."""

    most_slowdown: float
    most_members: int
    overcommit: float

    @classmethod
    def of(cls, needs: PolicyNeeds) -> Limits:
        """Return the limits that a policy declares."""
        return cls(needs.most_slowdown, needs.most_members, needs.overcommit)

    def check(self, policy: str) -> None:
        """Each is a finite number of at least 1.

        Raises
        ------
        ConfigError
            Names the policy and the limit.
        """
        for name, value in self._asdict().items():
            if not 1 <= value < math.inf:
                raise ConfigError(f"{policy}: {name}={value:g}, must be a finite number >= 1")

    def needs(self, prediction: RuntimePrediction) -> tuple[int, int]:
        """Thousandths of a device's compute, and bytes of its memory, that a job is granted."""
        return math.ceil(prediction.compute_milli / self.overcommit), prediction.memory_bytes


@dataclass(eq=False, slots=True)
class Compatibility:
    """Jobs of a shape, as what they would do beside others.

    Attributes
    ----------
    slowest : dict of Occupancy to float
        Companies that they may join, and how slow whoever is slowed most becomes there.
    joins, looked_at : int
        Bits of the numbers of these companies, and of all of which that is known.
    """

    slowest: dict[Occupancy, float] = field(default_factory=dict)
    joins: int = 0
    looked_at: int = 0


class CompatibilityCache:
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
        self._known: Sequence[Occupancy] = ()
        self.of: dict[Hashable, Compatibility] = {}

    def look(
        self,
        workload_keys: Iterable[Hashable],
        state: State,
        places: SharedCapacity,
        forecasts: Forecasts,
    ) -> list[Hashable]:
        """Those of the shapes that may have a place, once all that is new to them is asked for."""
        known = state.shared.known
        if known is not self._known or len(self.of) > MOST_KNOWN:
            self._known, self.of = known, {}
        looked: list[tuple[Hashable, Compatibility]] = []
        meetings: list[tuple[Compatibility, Occupancy, Job]] = []
        roomiest: list[Occupancy] = []
        for workload_key in workload_keys:
            one = self.of.get(workload_key)
            if one is None:
                one = self.of[workload_key] = Compatibility()
            looked.append((workload_key, one))
            new = places.present & ~one.looked_at
            if not new:
                continue
            job = state.pending.one_of(workload_key)
            if new.bit_count() <= BREADTH:
                at = self._with_capacity(job, one, _numbered(known, new), forecasts)
            elif not one.joins & places.present:
                roomiest = roomiest or sorted(places.occupancies, key=_by_capacity)
                at = islice(self._with_capacity(job, one, roomiest, forecasts), BREADTH)
            else:
                continue
            meetings += ((one, occupancy, job) for occupancy in at)
        told = forecasts.slowdowns([(at.kind, (*at.jobs, job)) for _, at, job in meetings])
        for (one, occupancy, _), slowdowns in zip(meetings, told, strict=True):
            if max(slowdowns) <= self._limits.most_slowdown:
                one.slowest[occupancy] = max(slowdowns)
                one.joins |= 1 << occupancy.number
        present = places.present
        return [workload_key for workload_key, one in looked if one.joins & present]

    def _with_capacity(
        self, job: Job, one: Compatibility, occupancies: Iterable[Occupancy], forecasts: Forecasts
    ) -> Iterator[Occupancy]:
        """Those of companies that are new to a shape, which it then knows."""
        needs: dict[str, tuple[int, int]] = {}
        for occupancy in occupancies:
            bit = 1 << occupancy.number
            if one.looked_at & bit:
                continue
            one.looked_at |= bit
            if len(occupancy.jobs) >= self._limits.most_members:
                continue
            if job.kinds and occupancy.kind not in job.kinds:
                continue
            if occupancy.kind not in needs:
                needs[occupancy.kind] = self._limits.needs(
                    forecasts.prediction(job, occupancy.kind)
                )
            compute_milli, memory_bytes = needs[occupancy.kind]
            if occupancy.compute_milli >= compute_milli and occupancy.memory_bytes >= memory_bytes:
                yield occupancy


def _numbered(known: Sequence[Occupancy], bits: int) -> Iterator[Occupancy]:
    while bits:
        bit = bits & -bits
        bits ^= bit
        yield known[bit.bit_length() - 1]


def _by_capacity(occupancy: Occupancy) -> tuple[int, int]:
    return -occupancy.compute_milli, occupancy.number
