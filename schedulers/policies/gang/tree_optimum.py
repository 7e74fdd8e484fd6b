"""The best plan of members that are alike, by dynamic programming over the tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from presage.schedulers.policies.gang.problem import Plan, Problem

Costs = NDArray[np.float64]


class TreeOptimum:
    """No plan is better.

    The ring through some devices is as long as the tree that spans them and an edge more, which
    closes it; and that tree has, at each vertex, an edge of the vertex's cost for every child but
    one that has members. So what k members below a vertex cost at least follows from its children,
    one after the other: as in a knapsack, in some members x candidates steps.

    Where the worst member counts, not the mean, the same is asked of the devices below a threshold
    of degradation, and thresholds are left out that can be no better than one that was tried.
    """

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Draws nothing.

        Raises
        ------
        ValueError
            Members differ in what harm they do where: then a plan's cost is no such sum.
        """
        problem.check()
        if not problem.alike:
            raise ValueError("members are not alike; take a search, such as FrogLeaping")
        if problem.weights.reduce == "mean":
            return _least_sum(problem, problem.weights.alpha * problem.degradation[0])
        return _least_maximum(problem)


def _least_sum(problem: Problem, costs: Costs) -> Plan:
    """Where the mean of what members cost and ``beta`` times the ring are least."""
    beta, members = problem.weights.beta, problem.members
    if members == 1:
        return np.array([costs.argmin()])
    found: list[tuple[float, _Below]] = []

    def below(first: int, end: int) -> _Below:
        edge = beta * problem.distances.widest(first, end) / problem.distances.most
        parts = problem.distances.parts(first, end)
        if len(parts) == end - first:
            one = _of_devices(first, costs[first:end], edge, members)
        else:
            one = below(*parts[0])
            for part in parts[1:]:
                one = _joined(one, below(*part), edge, members)
        if len(one.costs) > members:
            found.append((float(one.costs[members]) + edge / members, one))
        return one

    below(0, problem.candidates)
    best = min(found, key=lambda one: one[0])[1]
    return np.array(sorted(best.chosen(members)), np.int64)


def _least_maximum(problem: Problem) -> Plan:
    degradation, weights = problem.degradation[0], problem.weights
    thresholds = np.unique(np.sort(degradation)[problem.members - 1 :])

    def tried(number: int) -> tuple[float, float, Plan]:
        """What a plan of devices up to a threshold costs, what its ring does, and the plan."""
        plan = _least_sum(problem, np.where(degradation <= thresholds[number], 0.0, np.inf))
        ring = weights.beta * float(problem.communication(plan[None])[0])
        return weights.alpha * float(degradation[plan].max()) + ring, ring, plan

    first, last = tried(0), tried(len(thresholds) - 1)
    best = min(first, last, key=lambda one: one[0])
    between = [(0, len(thresholds) - 1, last[1])]
    while between:
        low, high, ring = between.pop()
        # The ring only gets shorter with a threshold: it is no shorter than that of the highest.
        if high - low < 2 or weights.alpha * thresholds[low + 1] + ring >= best[0]:
            continue
        middle = (low + high) // 2
        one = tried(middle)
        best = min(best, one, key=lambda one: one[0])
        between += [(middle, high, ring), (low, middle, one[1])]
    return best[2]


@dataclass(frozen=True, slots=True)
class _Below:
    """What 0, 1, ... members below a vertex cost at least, without the closing edge.

    Of two parts joined, ``right`` says how many are in the second one; of devices, ``order`` which
    come first.
    """

    costs: Costs
    order: Plan
    parts: tuple[_Below, _Below] | None = None
    right: Plan | None = None

    def chosen(self, members: int) -> list[int]:
        """Places of so many; parts may be joined as deep as there are nodes."""
        found: list[int] = []
        left = [(self, members)]
        while left:
            one, count = left.pop()
            if one.parts is None or one.right is None:
                found += one.order[:count].tolist()
            else:
                right = int(one.right[count])
                left += [(one.parts[0], count - right), (one.parts[1], right)]
        return found


def _of_devices(first: int, costs: Costs, edge: float, members: int) -> _Below:
    order = costs.argsort(kind="stable")[:members]
    edges = edge * np.arange(len(order))
    total = np.concatenate([[0.0], costs[order].cumsum() + edges])
    return _Below(total / members, first + order)


def _joined(left: _Below, right: _Below, edge: float, members: int) -> _Below:
    """Where both have members there is an edge between them."""
    most = min(members, len(left.costs) + len(right.costs) - 2)
    beside = np.concatenate([left.costs[:1], left.costs[1:] + edge / members])[: most + 1]
    padded = np.full(most + len(right.costs), np.inf)
    padded[len(right.costs) - 1 :][: len(beside)] = beside
    # In row k and column j: k - j members in the left part, j in the right one.
    total = sliding_window_view(padded, len(right.costs))[:, ::-1] + right.costs
    total[:, 0] = np.inf
    total[: len(left.costs), 0] = left.costs[: most + 1]
    return _Below(total.min(axis=1), left.order[:0], (left, right), total.argmin(axis=1))
