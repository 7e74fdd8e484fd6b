"""Ring through devices, and the cost of inserting or replacing devices."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.policies.gang.distances import Distances

Places = NDArray[np.int64]


class Ring:
    """Ring of devices in depth-first order.

    Lengths are sums over edges; an edge of the most expensive level counts 1.

    Parameters
    ----------
    places : ndarray of int of shape (members,)
        Positions among the candidates of ``distances``, all different, in any order.
    """

    def __init__(self, distances: Distances, places: Places) -> None:
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
            Members in the order of ``places``; entries of candidates that are members are
            undefined.
        """
        previous, following = np.roll(self.places, 1), np.roll(self.places, -1)
        removal = -self._detour(previous, self.places, following)
        found = removal[:, None] + self.insertions()
        # If the removed member is adjacent to the candidate, the candidate is inserted between the
        # member's other neighbour and the candidate's next member.
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

    def _detour(self, a: Places, by: Places, b: Places) -> NDArray[np.float64]:
        """Return the added length of the way from a to b by another device."""
        distances = self._distances
        return (distances(a, by) + distances(by, b) - distances(a, b)) / distances.most

    @cached_property
    def _all(self) -> Places:
        return np.arange(self._distances.devices)

    @cached_property
    def _after(self) -> Places:
        """Member that follows each candidate in the ring."""
        return np.searchsorted(self.places, self._all) % len(self.places)

    @cached_property
    def _before(self) -> Places:
        return self._after - 1
