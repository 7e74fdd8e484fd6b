"""Interface of the optimisers that plan gangs."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from presage.schedulers.policies.gang.problem import Plan, Problem


class Optimiser(Protocol):
    """Optimiser of plans; equal problems and equal seeds give equal plans."""

    def plan(self, problem: Problem, rng: np.random.Generator) -> Plan:
        """Return the places of the members among the candidates, all distinct.

        Raises
        ------
        ValueError
            If there are fewer candidates than members.
        """
        ...
