"""Greedy plan: one member after the other, each at the least cost (requirement A4)."""

from __future__ import annotations

import numpy as np

from presage.schedulers.policies.gang.optimisers.ring import Ring
from presage.schedulers.policies.gang.problem import Plan, Problem


class Greedy:
    """Optimiser that takes the best remaining device for each member; ties go to the first."""

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return a plan; draws no random numbers."""
        problem.check()
        weights, members = problem.weights, problem.members
        chosen = np.empty(members, np.int64)
        worst, ring = 0.0, Ring(problem.distances, chosen[:0])
        for member in range(members):
            degradation = problem.degradation[member]
            if weights.reduce == "max":
                scores = weights.alpha * np.maximum(worst, degradation)
            else:
                scores = weights.alpha * degradation / members
            scores = scores + weights.beta * ring.insertions() / members
            scores[ring.places] = np.inf
            chosen[member] = scores.argmin()
            worst = max(worst, degradation[chosen[member]])
            ring = Ring(problem.distances, chosen[: member + 1])
        return chosen
