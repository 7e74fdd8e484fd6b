"""Shuffled frog leaping: a population search over plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.policies.gang.optimisers.greedy import Greedy
from presage.schedulers.policies.gang.optimisers.subtrees import subtree_plans
from presage.schedulers.policies.gang.optimisers.swaps import descend
from presage.schedulers.policies.gang.problem import Plan, Plans, Problem


@dataclass(frozen=True, slots=True)
class FrogLeaping:
    """Optimiser by shuffled frog leaping; a frog is a plan (requirements D2 to D5).

    All frogs of an iteration leap at once, in array operations: towards the best of their memeplex;
    without an improvement, towards the best of all; without an improvement again, to a random plan.
    Then the frogs are sorted and dealt into memeplexes again. In a leap each member takes its place
    in the better frog with a probability that is drawn for the frog. If several members have the
    same device, the first keeps it and the others move to random devices.

    Parameters
    ----------
    frogs_per_member, fewest_frogs : int
        The number of frogs is the larger of ``frogs_per_member * members`` and the latter.
    memeplexes : int
        Number of memeplexes; at most one for each frog.
    iterations : int
        Largest number of iterations.
    convergence : float
        The search ends when an iteration improves the best plan by less.
    from_greedy : bool
        Whether one frog starts as the greedy plan, and the search ends with descents by swaps from
        the best frog and from the greedy plan; then it is never worse than these (D6).

    References
    ----------
    Eusuff, Lansey: Optimization of Water Distribution Network Design Using the Shuffled Frog
    Leaping Algorithm, J. Water Resour. Plann. Manage. 129 (2003); Eusuff, Lansey, Pasha:
    Shuffled frog-leaping algorithm, Eng. Optim. 38 (2006).
    """

    frogs_per_member: int = 4
    fewest_frogs: int = 60
    memeplexes: int = 6
    iterations: int = 16
    convergence: float = 0.0
    from_greedy: bool = True

    @classmethod
    def as_published(cls) -> Self:
        """Return an optimiser as in CN114253693A: one random plan for each member."""
        return cls(frogs_per_member=1, fewest_frogs=1, memeplexes=2, from_greedy=False)

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return the best plan found."""
        problem.check()
        count = max(self.frogs_per_member * problem.members, self.fewest_frogs)
        frogs = _random_plans(problem, count, rng)
        ends: list[Plan] = []
        if self.from_greedy:
            greedy = Greedy().plan(problem, rng)
            ends.append(descend(problem, greedy))
            begun = np.concatenate([greedy[None], subtree_plans(problem)])
            best = begun[problem.costs(begun).argsort(kind="stable")][:count]
            frogs[: len(best)] = best
        costs = problem.costs(frogs)
        for _ in range(self.iterations):
            order = np.argsort(costs, kind="stable")
            frogs, costs = frogs[order], costs[order]
            least = costs[0]
            self._leap(problem, frogs, costs, rng)
            if least - costs.min() < self.convergence:
                break
        best = frogs[costs.argmin()]
        ends.append(descend(problem, best) if self.from_greedy else best)
        found: Plan = ends[problem.costs(np.array(ends)).argmin()]
        return found

    def _leap(
        self, problem: Problem, frogs: Plans, costs: NDArray[np.float64], rng: np.random.Generator
    ) -> None:
        """Perform one iteration in place on sorted frogs.

        Frogs are dealt into memeplexes in turn, so each of the first frogs leads one; leaders never
        take a random plan.
        """
        count = len(frogs)
        best_of_mine = frogs[np.arange(count) % self.memeplexes]
        best_of_all = np.broadcast_to(frogs[0], frogs.shape)
        worse = np.arange(1, count)
        for leaders in (best_of_mine, best_of_all):
            leapt = _leap_towards(problem, frogs[worse], leaders[worse], rng)
            found = problem.costs(leapt)
            better = found < costs[worse]
            frogs[worse[better]], costs[worse[better]] = leapt[better], found[better]
            worse = worse[~better]
        lost = worse[worse >= self.memeplexes]
        frogs[lost] = _random_plans(problem, len(lost), rng)
        costs[lost] = problem.costs(frogs[lost])


def _random_plans(problem: Problem, count: int, rng: np.random.Generator) -> Plans:
    drawn = rng.random((count, problem.candidates)).argsort(axis=1)
    return drawn[:, : problem.members]


def _leap_towards(
    problem: Problem, frogs: Plans, leaders: Plans, rng: np.random.Generator
) -> Plans:
    """Return frogs that took members' places from their leaders, each with its own probability."""
    taken = rng.random(frogs.shape) < rng.random((len(frogs), 1))
    return _repair(problem, np.where(taken, leaders, frogs), rng)


def _repair(problem: Problem, plans: Plans, rng: np.random.Generator) -> Plans:
    """Move all but the first of the members on a device to unused devices."""
    order = plans.argsort(axis=1, kind="stable")
    in_order = np.take_along_axis(plans, order, axis=1)
    again = np.zeros(plans.shape, bool)
    np.put_along_axis(again, order[:, 1:], in_order[:, 1:] == in_order[:, :-1], axis=1)
    most = int(again.sum(axis=1).max(initial=0))
    if most:
        urn = rng.random((len(plans), problem.candidates))
        np.put_along_axis(urn, plans, 2.0, axis=1)  # used devices are drawn last
        drawn = urn.argpartition(most - 1, axis=1)[:, :most]
        which = again.cumsum(axis=1) - 1
        plans[again] = np.take_along_axis(drawn, which.clip(0), axis=1)[again]
    return plans
