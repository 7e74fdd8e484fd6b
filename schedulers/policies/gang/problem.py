"""Placement problem of a gang: candidates and costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.policies.gang.distances import Distances

Plan = NDArray[np.int64]  # of shape (members,)
Plans = NDArray[np.int64]  # of shape (plans, members)
Reduce = Literal["mean", "max"]


@dataclass(frozen=True)
class Weights:
    """Weights of the minimised cost ``alpha * I + beta * C`` (requirement D1).

    Attributes
    ----------
    alpha, beta : float
        Weights of interference and communication; at least 0, and not both 0.
    reduce : str
        A gang's interference is the "mean" of its members' (B5), or the "max": in synchronous
        training the slowest member sets the pace.
    """

    alpha: float = 1.0
    beta: float = 1.0
    reduce: Reduce = "mean"


@dataclass(frozen=True)
class Problem:
    """Choice of devices for the members of a gang, one member for each device.

    A plan is an array of the members' places among the candidates. Both terms are within [0, 1]:

    - I, the interference level (B5), of ``degradation``;
    - C, the communication cost (C2) of a ring all-reduce (C4), relative to a ring whose edges are
      all of the most expensive level. Each member sends the same amount over every edge, so that it
      cancels: C is the mean cost of the ring's edges over the largest cost of an edge. The ring
      visits the devices in depth-first order, which is the cheapest order on a tree.

    Attributes
    ----------
    degradation : ndarray of shape (members, candidates)
        SD (B4): the mean degradation, within [0, 1), of all on a device if a member joins them;
        infinite where it cannot be.
    distances : Distances
        Of the candidates, which are in depth-first order.
    """

    degradation: NDArray[np.float64]
    distances: Distances
    weights: Weights

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.degradation)

    @property
    def candidates(self) -> int:
        """Number of candidate devices."""
        return len(self.degradation[0])

    @cached_property
    def alike(self) -> bool:
        """Whether the members are interchangeable."""
        return bool((self.degradation == self.degradation[0]).all())

    def check(self) -> None:
        """Raise an error if there are too few candidates.

        Raises
        ------
        ValueError
            If there are fewer candidates than members.
        """
        if self.candidates < self.members:
            raise ValueError(
                f"a gang of {self.members} members has {self.candidates} candidates; wait for more"
            )

    def costs(self, plans: Plans, communication_factor: float = 1.0) -> NDArray[np.float64]:
        """Return the cost of each plan; plans have shape (plans, members), costs (plans,).

        Parameters
        ----------
        communication_factor : float
            Communication cost over that by ring.
        """
        weights = self.weights
        found = np.zeros(len(plans))
        if weights.alpha:
            found += weights.alpha * self.interference(plans)
        if weights.beta:
            found += weights.beta * communication_factor * self.communication(plans)
        return found

    def interference(self, plans: Plans) -> NDArray[np.float64]:
        """Return the interference I of each plan (B5)."""
        of_members = self.degradation[np.arange(self.members), plans]
        level: NDArray[np.float64] = (
            of_members.max(axis=1) if self.weights.reduce == "max" else of_members.mean(axis=1)
        )
        return level

    def communication(self, plans: Plans) -> NDArray[np.float64]:
        """Return the communication cost C of each plan, within [0, 1]; 0 for a single member."""
        if self.members == 1:
            return np.zeros(len(plans))
        ring = np.sort(plans, axis=1)
        edges = self.distances(ring, np.roll(ring, -1, axis=1))
        mean: NDArray[np.float64] = edges.mean(axis=1) / self.distances.most
        return mean
