"""Devices that jobs of the same kinds may use: idle now, and after running jobs end."""

from __future__ import annotations

import math
from bisect import insort

import numpy as np

from presage.schedulers.policies.failures.device_order import Devices, Mask
from presage.schedulers.policies.failures.learnt.placement_view import DOWN, IDLE, PlacementView
from presage.system.arrays import Array


class Pool:
    """Devices that some jobs may use, by rising failure rate; later starts do not change it.

    Attributes
    ----------
    idle : ndarray of int
        Idle devices.
    """

    def __init__(self, view: PlacementView, mask: Mask) -> None:
        order = view.safest if mask.all() else view.safest[mask[view.safest]]
        self._view, self._holder = view, view.holder[order]
        self._rates_per_s = view.rates_per_s[order]
        self._is_idle = self._holder == IDLE
        self.idle: Devices = order[self._is_idle]

    def idle_rates(self, largest: int) -> Array:
        """Return the total failure rates of the safest 0, 1, ... idle devices."""
        return _totals(self._rates_per_s[self._is_idle][:largest])

    def least_rates(self, largest: int) -> Array:
        """Return the total failure rates of the safest 0, 1, ... devices that are not down."""
        return _totals(self._rates_per_s[self._holder != DOWN][:largest])

    def releases(self, largest: int) -> tuple[Array, Array]:
        """Return when safer devices become free as running jobs end, and the rates of the safest.

        Parameters
        ----------
        largest : int
            Size of the largest gang, at most the number of idle devices.

        Returns
        -------
        delays_s : ndarray of shape (R,)
            Time until each predicted end after which safer devices are free, and until the first.
        rates_per_s : ndarray of shape (R, largest + 1)
            Total failure rates of the safest 0, 1, ... devices that are free then.
        """
        held = np.flatnonzero(self._holder >= 0)
        ends_s = self._view.end_s[self._holder[held]]
        first_s = ends_s.min(initial=math.inf)
        if first_s == math.inf:
            return np.empty(0), np.empty((0, largest + 1))
        best = np.flatnonzero(self._is_idle)[:largest].tolist()  # positions, rising
        is_safer = (held < best[-1]) & (ends_s < math.inf)
        held, ends_s = held[is_safer], ends_s[is_safer]
        order = np.argsort(ends_s, kind="stable")
        times_s, chosen = [float(first_s)], [best.copy()]
        for position, end_s in zip(held[order].tolist(), ends_s[order].tolist(), strict=True):
            if position >= best[-1]:
                continue
            insort(best, position)
            best.pop()
            if end_s > times_s[-1]:
                times_s.append(end_s)
                chosen.append(best.copy())
            else:
                chosen[-1] = best.copy()
        rates = np.zeros((len(chosen), largest + 1))
        np.cumsum(self._rates_per_s[np.array(chosen)], axis=1, out=rates[:, 1:])
        return np.array(times_s) - self._view.now_s, rates


def _totals(rates_per_s: Array) -> Array:
    """Return the sums of the first 0, 1, ... rates."""
    found: Array = np.zeros(len(rates_per_s) + 1)
    np.cumsum(rates_per_s, out=found[1:])
    return found
