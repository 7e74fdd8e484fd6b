"""Ring through devices, and the cost of inserting or replacing devices."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.policies.gang.distances import Distances

SharedCapacity = NDArray[np.int64]


class Ring:
    """Ring of devices in depth-first order.

    Lengths are sums over edges; an edge of the most expensive level counts 1.

    Parameters
    ----------
    places : ndarray of int of shape (members,)
        Among the candidates of ``distances``, each another, in any order.
    """

    def __init__(self, distances: Distances, places: SharedCapacity) -> None:
        self._distances = distances
        self._order = np.argsort(places)
        self.places = places[self._order]

    def insertions(self) -> NDArray[np.float64]:
        """Return the added length by each candidate, of shape (candidates,)."""
        if not len(self.places):
            return np.zeros(self._distances.devices)
        before, after = self.places[self._before], self.places[self._after]
        return self._detour(before, self._all, after)

    def replacements(self) -> NDArray[np.float64]:
        """Return the added length if a candidate takes a member's place.

        Returns
        -------
        ndarray of shape (members, candidates)
            Members in the order in which they were given; what it says of candidates that are
            members means nothing.
        """
        previous, following = np.roll(self.places, 1), np.roll(self.places, -1)
        removal = -self._detour(previous, self.places, following)
        found = removal[:, None] + self.insertions()
        # Where the member that leaves is next to the one that comes, its other neighbour is now.
        before, after = self._before, self._after
        found[before, self._all] = removal[before] + self._detour(
            previous[before], self._all, self.places[after]
        )
        found[after, self._all] = removal[after] + self._detour(
            self.places[before], self._all, following[after]
        )
        in_order = np.empty_like(found)
        in_order[self._order] = found
        return in_order

    def _detour(
        self, a: SharedCapacity, by: SharedCapacity, b: SharedCapacity
    ) -> NDArray[np.float64]:
        """Return the added length of the way from a to b by another device."""
        distances = self._distances
        return (distances(a, by) + distances(by, b) - distances(a, b)) / distances.most

    @cached_property
    def _all(self) -> SharedCapacity:
        return np.arange(self._distances.devices)

    @cached_property
    def _after(self) -> SharedCapacity:
        """Return the member that would follow each candidate."""
        return np.searchsorted(self.places, self._all) % len(self.places)

    @cached_property
    def _before(self) -> SharedCapacity:
        return self._after - 1
