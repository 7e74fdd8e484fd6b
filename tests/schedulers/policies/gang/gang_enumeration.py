"""Every plan there is, of problems so small that they can be tried."""

from __future__ import annotations

import math
from itertools import combinations, islice, permutations

import numpy as np

from presage.schedulers.policies.gang.problem import Plan, Problem

MOST_PLANS = 10_000_000
_AT_ONCE = 100_000


class Enumeration:
    """Optimiser that enumerates all plans; ties go to the first."""

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return the best plan; draws no random numbers.

        Raises
        ------
        ValueError
            There are more than ``MOST_PLANS``.
        """
        problem.check()
        candidates, members = problem.candidates, problem.members
        choose = combinations if problem.alike else permutations
        count = (math.comb if problem.alike else math.perm)(candidates, members)
        if count > MOST_PLANS:
            raise ValueError(f"{count:,} plans, {MOST_PLANS:,} at most; take a search instead")
        plans = choose(range(candidates), members)
        best, least = np.arange(members), math.inf
        while chunk := list(islice(plans, _AT_ONCE)):
            some = np.array(chunk, np.int64)
            costs = problem.costs(some)
            if costs.min() < least:
                best, least = some[costs.argmin()], float(costs.min())
        return best
