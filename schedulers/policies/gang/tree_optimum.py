"""Optimal plan for interchangeable members, by dynamic programming over the topology tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from presage.schedulers.policies.gang.problem import Plan, Problem

Costs = NDArray[np.float64]


class TreeOptimum:
    """Optimiser whose plans are optimal.

    The ring through some devices is as long as the tree that spans them and an edge more, which
    closes it; and that tree has, at each vertex, an edge of the vertex's cost for every child but
    one that has members. So what k members below a vertex cost at least follows from its children,
    one after the other: as in a knapsack, in some members x candidates steps.

    Where the worst member counts, not the mean, the same is asked of the devices below a threshold
    of degradation, and thresholds are left out that can be no better than one that was tried.
    """

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return an optimal plan; draws no random numbers.

        Raises
        ------
        ValueError
            Members differ in their degradation: then the cost of a plan is no such sum.
        """
        problem.check()
        if not problem.alike:
            raise ValueError("members are not alike; take a search, such as FrogLeaping")
        if problem.weights.reduce == "mean":
            return _least_sum(problem, problem.weights.alpha * problem.degradation[0])
        return _least_maximum(problem)


def _least_sum(problem: Problem, costs: Costs) -> Plan:
    """Return the plan with the least mean degradation plus ``beta`` times the ring."""
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
        """Return the cost, the ring cost and the plan of devices up to a threshold."""
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
    """Least costs of 0, 1, ... members below a vertex, without the closing edge.

    Of two parts joined, ``right`` says how many are in the second one; of devices, ``order`` which
    come first.
    """

    costs: Costs
    order: Plan
    parts: tuple[_Below, _Below] | None = None
    right: Plan | None = None

    def chosen(self, members: int) -> list[int]:
        """Return the places of a number of members, without recursion."""
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
    """Join two parts; an edge is added where both have members."""
    most = min(members, len(left.costs) + len(right.costs) - 2)
    beside = np.concatenate([left.costs[:1], left.costs[1:] + edge / members])[: most + 1]
    padded = np.full(most + len(right.costs), np.inf)
    padded[len(right.costs) - 1 :][: len(beside)] = beside
    # In row k and column j: k - j members in the left part, j in the right one.
    total = sliding_window_view(padded, len(right.costs))[:, ::-1] + right.costs
    total[:, 0] = np.inf
    total[: len(left.costs), 0] = left.costs[: most + 1]
    return _Below(total.min(axis=1), left.order[:0], (left, right), total.argmin(axis=1))
