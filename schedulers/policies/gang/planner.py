"""Choice of the devices of a gang."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.job import Job
from presage.schedulers.core.state import State
from presage.schedulers.policies.gang.candidates import Candidates
from presage.schedulers.policies.gang.distances import Distances
from presage.schedulers.policies.gang.fewest_nodes import places_near
from presage.schedulers.policies.gang.optimisers.optimiser import Optimiser
from presage.schedulers.policies.gang.problem import Problem, Weights
from presage.schedulers.policies.gang.switch_sharing import SwitchSharing

Places = NDArray[np.int64]


class Planner:
    """Planner of gangs, one after the other.

    Parameters
    ----------
    near : str
        Level of the topology: a gang that fits into one of its vertices is placed in one.
    """

    def __init__(self, weights: Weights, optimiser: Optimiser, near: str) -> None:
        self._weights, self._optimiser, self._near = weights, optimiser, near

    def plan(
        self,
        job: Job,
        found: Candidates,
        state: State,
        sharing: SwitchSharing,
        draws: np.random.Generator,
    ) -> tuple[Allocation, ...]:
        """Return allocations of the gang, or of as many of its members as fit."""
        best, least = np.zeros(0, np.int64), math.inf
        size = job.gpus_per_task
        nearest = found.devices[:, 0]  # one device of each task represents the others
        subsets = places_near(
            job, nearest, state.cluster, self._near, down=state.down, failed=state.failed_devices
        )
        for subset in self._with_switches(subsets, nearest, job.gpus // size, sharing):
            members = min(job.gpus // size, len(subset))
            if members * size < job.fewest_gpus:
                best = subset if members > len(best) else best
                continue
            problem = Problem(
                np.broadcast_to(found.degradation[subset], (members, len(subset))),
                Distances(state.cluster.topology, nearest[subset]),
                self._weights,
            )
            places = np.arange(members)
            if members < len(subset):
                places = self._optimiser.plan(problem, draws)
            factor = sharing.cost_factor(nearest[subset[places]])
            cost = float(problem.costs(places[None], factor)[0])
            if members > len(best) or (members == len(best) and cost < least):
                best, least = subset[places], cost
        return found.allocations(best, state.cluster)

    def _with_switches(
        self, subsets: Iterable[Places], nearest: Places, members: int, sharing: SwitchSharing
    ) -> Iterator[Places]:
        """Yield each subset of places, then its parts below switches if communication counts."""
        for subset in subsets:
            yield subset
            if self._weights.beta:
                for places in sharing.places_below(nearest[subset], members):
                    yield subset[places]
