"""The least interference below each vertex of the tree: plans that a search can begin with."""

from __future__ import annotations

import numpy as np

from presage.schedulers.policies.gang.problem import Plan, Plans, Problem
from presage.schedulers.policies.gang.swaps import descended


class Subtrees:
    """Of every subtree that has enough devices those where members do least harm; the best of these
    plans, bettered by swaps.

    A search that moves members one by one does not come from one rack into another.
    """

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Draws nothing."""
        problem.check()
        plans = below_each(problem)
        return descended(problem, plans[problem.costs(plans).argmin()])


def below_each(problem: Problem) -> Plans:
    """A plan of each subtree that has enough candidates, of all of them at least.

    Members take in turn the device that suits them best of those that are left.
    """
    found, places = [], [(0, problem.candidates)]
    for first, end in places:  # which grows
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
