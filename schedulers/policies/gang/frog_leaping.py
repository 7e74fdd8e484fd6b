"""Shuffled frog leaping: plans that learn from better ones, in groups that are mixed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.policies.gang.greedy import Greedy
from presage.schedulers.policies.gang.problem import Plan, Plans, Problem
from presage.schedulers.policies.gang.subtrees import below_each
from presage.schedulers.policies.gang.swaps import descended


@dataclass(frozen=True, slots=True)
class FrogLeaping:
    """A frog is a plan, its fitness what it costs, less being better (requirements D2 to D5).

    All frogs of an iteration leap at once, and are evaluated in one operation on arrays: towards
    the best of their memeplex; who does not get better by that, towards the best of all; who still
    does not, to a random plan. Then they are sorted and dealt into memeplexes anew. In a leap each
    member goes where it is in the better frog, with a probability that is drawn for the frog; of
    members that meet on a device the first stays, and the others go to random ones.

    Parameters
    ----------
    frogs_per_member, fewest_frogs : int
        There are as many frogs as the larger of the two says.
    memeplexes : int
        At most one a frog.
    iterations : int
        At most.
    convergence : float
        It ends when an iteration betters the best plan by less.
    from_greedy : bool
        Whether a frog begins as the greedy plan, and it ends with a descent by swaps from the best
        frog, and from the greedy plan: then it is never worse than those swaps (D6).

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
        """With the defaults of CN114253693A: as many frogs as members, from random plans."""
        return cls(frogs_per_member=1, fewest_frogs=1, memeplexes=2, from_greedy=False)

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """The best that was found."""
        problem.check()
        count = max(self.frogs_per_member * problem.members, self.fewest_frogs)
        frogs = _random(problem, count, rng)
        ends: list[Plan] = []
        if self.from_greedy:
            greedy = Greedy().plan(problem, rng)
            ends.append(descended(problem, greedy))
            begun = np.concatenate([greedy[None], below_each(problem)])
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
        ends.append(descended(problem, best) if self.from_greedy else best)
        found: Plan = ends[problem.costs(np.array(ends)).argmin()]
        return found

    def _leap(
        self, problem: Problem, frogs: Plans, costs: NDArray[np.float64], rng: np.random.Generator
    ) -> None:
        """An iteration, in place, of frogs that are sorted.

        They are dealt like cards: the first ones are the best of a memeplex each, which never give
        their plan up for a random one.
        """
        count = len(frogs)
        best_of_mine = frogs[np.arange(count) % self.memeplexes]
        best_of_all = np.broadcast_to(frogs[0], frogs.shape)
        worse = np.arange(1, count)
        for leaders in (best_of_mine, best_of_all):
            leapt = _towards(problem, frogs[worse], leaders[worse], rng)
            found = problem.costs(leapt)
            better = found < costs[worse]
            frogs[worse[better]], costs[worse[better]] = leapt[better], found[better]
            worse = worse[~better]
        lost = worse[worse >= self.memeplexes]
        frogs[lost] = _random(problem, len(lost), rng)
        costs[lost] = problem.costs(frogs[lost])


def _random(problem: Problem, count: int, rng: np.random.Generator) -> Plans:
    drawn = rng.random((count, problem.candidates)).argsort(axis=1)
    return drawn[:, : problem.members]


def _towards(problem: Problem, frogs: Plans, leaders: Plans, rng: np.random.Generator) -> Plans:
    """Frogs that took each member's place from a leader with a probability of their own."""
    taken = rng.random(frogs.shape) < rng.random((len(frogs), 1))
    return _repaired(problem, np.where(taken, leaders, frogs), rng)


def _repaired(problem: Problem, plans: Plans, rng: np.random.Generator) -> Plans:
    """Of members on the same device the first stays, the others go where nobody is."""
    order = plans.argsort(axis=1, kind="stable")
    in_order = np.take_along_axis(plans, order, axis=1)
    again = np.zeros(plans.shape, bool)
    np.put_along_axis(again, order[:, 1:], in_order[:, 1:] == in_order[:, :-1], axis=1)
    most = int(again.sum(axis=1).max(initial=0))
    if most:
        urn = rng.random((len(plans), problem.candidates))
        np.put_along_axis(urn, plans, 2.0, axis=1)  # they are drawn last
        drawn = urn.argpartition(most - 1, axis=1)[:, :most]
        which = again.cumsum(axis=1) - 1
        plans[again] = np.take_along_axis(drawn, which.clip(0), axis=1)[again]
    return plans
