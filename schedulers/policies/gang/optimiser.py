"""The one signature of whoever plans a gang."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from presage.schedulers.policies.gang.problem import Plan, Problem


class Optimiser(Protocol):
    """Equal problems and generators of equal seeds, equal plans."""

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Places of the members among the candidates, each another.

        Raises
        ------
        ValueError
            There are fewer candidates than members.
        """
        ...
