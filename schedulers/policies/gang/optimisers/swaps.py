"""Descent by swaps: the best swap is applied as long as it improves the plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.policies.gang.optimisers.greedy import Greedy
from presage.schedulers.policies.gang.optimisers.ring import Ring
from presage.schedulers.policies.gang.problem import Plan, Problem

LEAST_GAIN = 1e-12  # smaller gains are rounding errors


class Swaps:
    """Optimiser that improves the greedy plan by swaps."""

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return a plan; draws no random numbers."""
        return descend(problem, Greedy().plan(problem, rng))


def descend(problem: Problem, plan: Plan) -> Plan:
    """Return a plan that no swap improves.

    A swap replaces a member's device by one that is not in the plan, or exchanges the devices of
    two members. The descent ends, since every swap lowers the cost and plans are finitely
    many.
    """
    plan = plan.copy()
    while True:
        replaced, exchanged = _replacements(problem, plan), _exchanges(problem, plan)
        gain = -min(replaced.min(), exchanged.min())
        if not gain > LEAST_GAIN:
            return plan
        if -replaced.min() == gain:
            member, place = np.unravel_index(replaced.argmin(), replaced.shape)
            plan[member] = place
        else:
            pair = list(np.unravel_index(exchanged.argmin(), exchanged.shape))
            plan[pair] = plan[pair[::-1]]


def _replacements(problem: Problem, plan: Plan) -> NDArray[np.float64]:
    """Return the added cost of another device for a member, of shape (members, candidates)."""
    weights, members = problem.weights, problem.members
    now = problem.degradation[np.arange(members), plan]
    if weights.reduce == "max":
        others = _largest_of_others(now)[:, None]
        more = weights.alpha * (np.maximum(problem.degradation, others) - now.max())
    else:
        more = weights.alpha * (problem.degradation - now[:, None]) / members
    if weights.beta and members > 1:
        more = more + weights.beta * Ring(problem.distances, plan).replacements() / members
    more[:, plan] = np.inf
    found: NDArray[np.float64] = more
    return found


def _exchanges(problem: Problem, plan: Plan) -> NDArray[np.float64]:
    """Return the added cost if two members change places, of shape (members, members).

    Only interference changes, and it does not if all members are interchangeable.
    """
    weights = problem.weights
    if problem.alike:
        return np.zeros((1, 1))
    each = problem.degradation[:, plan]  # of a member in another's place
    now = np.diag(each)
    if weights.reduce == "max":
        more = np.maximum(each, each.T) - now.max()
        for a in range(problem.members):
            others = _largest_of_others(np.delete(now, a))
            more[a] = np.maximum(more[a], np.insert(others, a, 0.0) - now.max())
        np.fill_diagonal(more, 0.0)
    else:
        more = (each + each.T - now[:, None] - now) / problem.members
    found: NDArray[np.float64] = weights.alpha * more
    return found


def _largest_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each value, the largest of all others; 0 if there is no other."""
    if len(values) < 2:
        return np.zeros(len(values))
    first, second = np.sort(values)[[-1, -2]]
    most: NDArray[np.float64] = np.full(len(values), first)
    most[values.argmax()] = second
    return most
