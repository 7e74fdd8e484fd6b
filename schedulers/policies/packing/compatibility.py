"""Cache of co-location compatibility between workload keys and occupancies, from forecasts."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from presage.errors import ConfigError
from presage.schedulers.core.capacity.shared_devices import MAX_UNUSED, Occupancy
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.state import State

BREADTH = 256  # occupancies that are evaluated for a workload key in one decision


class Limits(NamedTuple):
    """Limits of co-location on a device, as ``PolicyNeeds`` declares them."""

    most_slowdown: float
    most_members: int
    overcommit: float

    @classmethod
    def from_needs(cls, needs: PolicyNeeds) -> Limits:
        """Return the limits that a policy declares."""
        return cls(needs.most_slowdown, needs.most_members, needs.overcommit)

    def check(self, policy: str) -> None:
        """Raise an error unless each limit is a finite number of at least 1.

        Raises
        ------
        ConfigError
            Names the policy and the limit.
        """
        for name, value in self._asdict().items():
            if not 1 <= value < math.inf:
                raise ConfigError(f"{policy}: {name}={value:g}, must be a finite number >= 1")

    def needs(self, prediction: RuntimePrediction) -> tuple[int, int]:
        """Return the compute in thousandths and the memory in bytes that a job is allocated."""
        return math.ceil(prediction.compute_milli / self.overcommit), prediction.memory_bytes


@dataclass(eq=False, slots=True)
class Compatibility:
    """Compatibility of one workload key with occupancies.

    Attributes
    ----------
    slowest : dict of Occupancy to float
        Largest predicted slowdown on each occupancy that its jobs may join.
    joinable, evaluated : int
        Bit sets of the numbers of these occupancies, and of all that were evaluated.
    """

    slowest: dict[Occupancy, float] = field(default_factory=dict)
    joinable: int = 0
    evaluated: int = 0


class CompatibilityCache:
    """Cache of the occupancies that jobs of each workload key may join.

    If more than ``BREADTH`` occupancies are new to a workload key without a place, the ``BREADTH``
    occupancies with the most free compute that have capacity for it are evaluated.

    Attributes
    ----------
    by_workload : dict
        Compatibility by workload key.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._numbered: Sequence[Occupancy] = ()
        self.by_workload: dict[Hashable, Compatibility] = {}

    def evaluate(
        self,
        workload_keys: Iterable[Hashable],
        state: State,
        present: int,
        occupancies: Collection[Occupancy],
        forecasts: Forecasts,
    ) -> list[Hashable]:
        """Return the workload keys that have a place; new pairs are requested in one batch.

        Parameters
        ----------
        present : int
            Bits of the numbers of the occupancies that devices have, or had in this pass.
        occupancies : collection of Occupancy
            Occupancies that devices have now.
        """
        numbered = state.shared.occupancies
        if numbered is not self._numbered or len(self.by_workload) > MAX_UNUSED:
            self._numbered, self.by_workload = numbered, {}
        found: list[tuple[Hashable, Compatibility]] = []
        pairs: list[tuple[Compatibility, Occupancy, Job]] = []
        by_capacity: list[Occupancy] = []
        for workload_key in workload_keys:
            compatibility = self.by_workload.get(workload_key)
            if compatibility is None:
                compatibility = self.by_workload[workload_key] = Compatibility()
            found.append((workload_key, compatibility))
            new = present & ~compatibility.evaluated
            if not new:
                continue
            job = state.pending.representative(workload_key)
            if new.bit_count() <= BREADTH:
                fitting = self._with_capacity(job, compatibility, _select(numbered, new), forecasts)
            elif not compatibility.joinable & present:
                by_capacity = by_capacity or sorted(occupancies, key=_by_capacity)
                fitting = self._with_capacity(job, compatibility, by_capacity, forecasts)
                fitting = islice(fitting, BREADTH)
            else:
                continue
            pairs += ((compatibility, occupancy, job) for occupancy in fitting)
        predicted = forecasts.slowdowns([(at.kind, (*at.jobs, job)) for _, at, job in pairs])
        for (compatibility, occupancy, _), slowdowns in zip(pairs, predicted, strict=True):
            if max(slowdowns) <= self._limits.most_slowdown:
                compatibility.slowest[occupancy] = max(slowdowns)
                compatibility.joinable |= 1 << occupancy.number
        return [workload_key for workload_key, known in found if known.joinable & present]

    def _with_capacity(
        self,
        job: Job,
        compatibility: Compatibility,
        occupancies: Iterable[Occupancy],
        forecasts: Forecasts,
    ) -> Iterator[Occupancy]:
        """Yield new occupancies that have capacity for a job, and mark all of them as evaluated."""
        needs: dict[str, tuple[int, int]] = {}
        for occupancy in occupancies:
            bit = 1 << occupancy.number
            if compatibility.evaluated & bit:
                continue
            compatibility.evaluated |= bit
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


def _select(occupancies: Sequence[Occupancy], bits: int) -> Iterator[Occupancy]:
    while bits:
        bit = bits & -bits
        bits ^= bit
        yield occupancies[bit.bit_length() - 1]


def _by_capacity(occupancy: Occupancy) -> tuple[int, int]:
    return -occupancy.compute_milli, occupancy.number
