"""Plans of least interference below each vertex of the tree, as starts of a search."""

from __future__ import annotations

import numpy as np

from presage.schedulers.policies.gang.optimisers.swaps import descend
from presage.schedulers.policies.gang.problem import Plan, Plans, Problem


class Subtrees:
    """Optimiser that improves the best subtree's plan of least interference by swaps.

    A search that moves single members does not leave a rack.
    """

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return a plan; draws no random numbers."""
        problem.check()
        plans = subtree_plans(problem)
        return descend(problem, plans[problem.costs(plans).argmin()])


def subtree_plans(problem: Problem) -> Plans:
    """Return a plan for each subtree with enough candidates.

    Each member takes the remaining device with its least degradation.
    """
    found, places = [], [(0, problem.candidates)]
    for first, end in places:  # the list grows during the loop
        if end - first >= problem.members:
            found.append(first + _least(problem.degradation[:, first:end], problem.alike))
            places += problem.distances.parts(first, end) if end - first > 1 else []
    return np.array(found)


def _least(degradation: np.ndarray[tuple[int, int], np.dtype[np.float64]], alike: bool) -> Plan:
    if alike:
        order: Plan = degradation[0].argsort(kind="stable")
        return order[: len(degradation)]
    left, chosen = degradation.copy(), np.empty(len(degradation), np.int64)
    for member in range(len(degradation)):
        chosen[member] = left[member].argmin()
        left[:, chosen[member]] = np.inf
    return chosen
