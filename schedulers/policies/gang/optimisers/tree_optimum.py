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

    The ring through a set of devices is as long as their spanning tree and one closing edge. The
    spanning tree has, at each vertex, an edge of the vertex's cost for all but one of the children
    that have members. The least cost of k members below a vertex therefore follows from its
    children one after the other, as in a knapsack problem, in about members x candidates steps.

    With ``reduce="max"`` the same problem is solved for the devices below a threshold of
    degradation; thresholds that cannot improve on an evaluated one are skipped.
    """

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return an optimal plan; draws no random numbers.

        Raises
        ------
        ValueError
            If members differ in their degradation: then costs are not such sums.
        """
        problem.check()
        if not problem.alike:
            raise ValueError("members are not interchangeable; use a search, such as FrogLeaping")
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
            costs_below = _leaf(first, costs[first:end], edge, members)
        else:
            costs_below = below(*parts[0])
            for part in parts[1:]:
                costs_below = _join(costs_below, below(*part), edge, members)
        if len(costs_below.costs) > members:
            total = float(costs_below.costs[members]) + edge / members
            found.append((total, costs_below))
        return costs_below

    below(0, problem.candidates)
    best = min(found, key=lambda entry: entry[0])[1]
    return np.array(sorted(best.chosen(members)), np.int64)


def _least_maximum(problem: Problem) -> Plan:
    degradation, weights = problem.degradation[0], problem.weights
    thresholds = np.unique(np.sort(degradation)[problem.members - 1 :])

    def solve(number: int) -> tuple[float, float, Plan]:
        """Return the cost, the ring cost and the plan of devices up to a threshold."""
        plan = _least_sum(problem, np.where(degradation <= thresholds[number], 0.0, np.inf))
        ring = weights.beta * float(problem.communication(plan[None])[0])
        return weights.alpha * float(degradation[plan].max()) + ring, ring, plan

    first, last = solve(0), solve(len(thresholds) - 1)
    best = min(first, last, key=lambda solution: solution[0])
    between = [(0, len(thresholds) - 1, last[1])]
    while between:
        low, high, ring = between.pop()
        # The ring gets no longer with a higher threshold, so the highest one bounds it from below.
        if high - low < 2 or weights.alpha * thresholds[low + 1] + ring >= best[0]:
            continue
        middle = (low + high) // 2
        solution_between = solve(middle)
        best = min(best, solution_between, key=lambda solution: solution[0])
        between += [(middle, high, ring), (low, middle, solution_between[1])]
    return best[2]


@dataclass(frozen=True, slots=True)
class _Below:
    """Least costs of 0, 1, ... members below a vertex, without the closing edge.

    Of two joined parts, ``right`` is the number of members in the second part. Of devices,
    ``order`` is the order in which they are chosen.
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
            part, count = left.pop()
            if part.parts is None or part.right is None:
                found += part.order[:count].tolist()
            else:
                right = int(part.right[count])
                left += [(part.parts[0], count - right), (part.parts[1], right)]
        return found


def _leaf(first: int, costs: Costs, edge: float, members: int) -> _Below:
    order = costs.argsort(kind="stable")[:members]
    edges = edge * np.arange(len(order))
    total = np.concatenate([[0.0], costs[order].cumsum() + edges])
    return _Below(total / members, first + order)


def _join(left: _Below, right: _Below, edge: float, members: int) -> _Below:
    """Join two parts; an edge is added where both have members."""
    most = min(members, len(left.costs) + len(right.costs) - 2)
    with_edge = np.concatenate([left.costs[:1], left.costs[1:] + edge / members])[: most + 1]
    padded = np.full(most + len(right.costs), np.inf)
    padded[len(right.costs) - 1 :][: len(with_edge)] = with_edge
    # In row k and column j: k - j members in the left part, j in the right one.
    total = sliding_window_view(padded, len(right.costs))[:, ::-1] + right.costs
    total[:, 0] = np.inf
    total[: len(left.costs), 0] = left.costs[: most + 1]
    return _Below(total.min(axis=1), left.order[:0], (left, right), total.argmin(axis=1))
