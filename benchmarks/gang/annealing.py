"""Simulated annealing of a gang's plan, as a baseline of the optimisers."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from random import Random

import numpy as np

from presage.schedulers.policies.gang.problem import Plan, Problem


class Annealing:
    """Simulated annealing: a member moves to a drawn device, or two members swap (Metropolis).

    It starts from a random plan. The temperature falls geometrically, from the cost of a member's
    worst move to a thousandth of that. The best visited plan is returned.

    References
    ----------
    Kirkpatrick, Gelatt, Vecchi: Optimization by Simulated Annealing, Science 220 (1983).
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return the best plan after all moves."""
        problem.check()
        draw = Random(int(rng.integers(2**63)))
        plan = _Annealed(problem, draw)
        cost = least = plan.cost
        best = list(plan.places)
        hottest = 1.0 / problem.members
        for step in range(self._steps):
            temperature = hottest * 10.0 ** (-3 * step / self._steps)
            more, made = plan.proposed()
            if more <= 0 or draw.random() < math.exp(-more / temperature):
                plan.make(*made)
                cost += more
                if cost < least - 1e-12:
                    least, best = cost, list(plan.places)
        return np.array(best)


class _Annealed:
    """Plan that is changed move by move.

    Attributes
    ----------
    places : list of int
        By member.
    """

    def __init__(self, problem: Problem, draw: Random) -> None:
        self._draw, self._weights = draw, problem.weights
        self._degradation = problem.degradation.tolist()
        self._alike = problem.alike
        self._members, self._candidates = problem.members, problem.candidates
        self._most, self._gaps = problem.distances.most, _gaps(problem)
        self.places = draw.sample(range(self._candidates), self._members)
        self._free = sorted(set(range(self._candidates)) - set(self.places))
        self._ring = sorted(self.places)
        self._of = [self._degradation[i][place] for i, place in enumerate(self.places)]
        self._sorted = sorted(self._of)
        self.cost = float(problem.costs(np.array([self.places]))[0])

    def proposed(self) -> tuple[float, tuple[int, int, bool]]:
        """Return the added cost of a drawn move, and the move."""
        member = self._draw.randrange(self._members)
        if not self._free or (not self._alike and self._draw.random() < 0.5):
            other = self._draw.randrange(self._members)
            a, b = self.places[member], self.places[other]
            was = [self._of[member], self._of[other]]
            now = [self._degradation[member][b], self._degradation[other][a]]
            if member == other:
                return 0.0, (member, other, True)
            return self._weights.alpha * self._more(was, now), (member, other, True)
        at = self._draw.randrange(len(self._free))
        place = self._free[at]
        now = [self._degradation[member][place]]
        more = self._weights.alpha * self._more([self._of[member]], now)
        if self._weights.beta and self._members > 1:
            longer = self._longer(self.places[member], place)
            more += self._weights.beta * longer / self._members / self._most
        return more, (member, at, False)

    def make(self, member: int, other: int, exchange: bool) -> None:
        """Apply a proposed move: to a free place, by its number, or with another member."""
        if exchange:
            if member != other:
                a, b = self.places[member], self.places[other]
                self._put(member, b)
                self._put(other, a)
            return
        before, after = self.places[member], self._free[other]
        self._free[other] = before
        del self._ring[bisect_left(self._ring, before)]
        insort(self._ring, after)
        self._put(member, after)

    def _put(self, member: int, place: int) -> None:
        del self._sorted[bisect_left(self._sorted, self._of[member])]
        self.places[member] = place
        self._of[member] = self._degradation[member][place]
        insort(self._sorted, self._of[member])

    def _more(self, was: list[float], now: list[float]) -> float:
        """Return the added interference if values of some members change."""
        if self._weights.reduce == "mean":
            return (sum(now) - sum(was)) / self._members
        left = list(was)
        for value in reversed(self._sorted):  # the largest that stays
            if value in left:
                left.remove(value)
            else:
                return max(*now, value) - self._sorted[-1]
        return max(now) - self._sorted[-1]

    def _longer(self, before: int, after: int) -> float:
        """Return the added length of the ring if one place is replaced by another."""
        ring, members = self._ring, self._members
        if members == 2:
            (stays,) = (place for place in ring if place != before)
            return 2 * (self._distance(stays, after) - self._distance(stays, before))
        at = bisect_left(ring, before)
        previous, following = ring[at - 1], ring[(at + 1) % members]
        shorter = self._detour(previous, before, following)
        to = bisect_left(ring, after)
        left, right = ring[to - 1], ring[to % members]
        if left == before:
            left = previous
        if right == before:
            right = following
        return self._detour(left, after, right) - shorter

    def _detour(self, a: int, by: int, b: int) -> float:
        return self._distance(a, by) + self._distance(by, b) - self._distance(a, b)

    def _distance(self, a: int, b: int) -> float:
        """Return the distance of two places, as ``gang.distances.Distances`` does for devices."""
        if a == b:
            return 0.0
        if a > b:
            a, b = b, a
        power = (b - a).bit_length() - 1
        row = self._gaps[power]
        return max(row[a], row[b - (1 << power)])


def _gaps(problem: Problem) -> list[list[float]]:
    """Return the largest gap of 1, 2, 4, ... from each candidate on."""
    n = problem.candidates
    row = problem.distances(np.arange(n - 1), np.arange(1, n)).tolist()
    rows, width = [row], 1
    while 2 * width <= len(rows[0]):
        row = rows[-1]
        rows.append([max(row[i], row[i + width]) for i in range(len(row) - width)])
        width *= 2
    return rows
