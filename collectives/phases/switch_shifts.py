"""Effect of the switch on a rhythm: by how much AllReduces follow earlier on those on the switch.

A rhythm is learnt as if all AllReduces ran by ring, so that decisions do not change it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from presage.collectives.phases.history import History

LEAST = 2  # gaps of each way from which a shift is known
NEWEST = 32  # gaps of each way that are compared


def learn_shifts_s(history: History, calls: int) -> NDArray[np.float64]:
    """Return by how much earlier the next AllReduce starts after one on the switch.

    Returns
    -------
    array of float, shape (calls,)
        Difference of the median gaps after AllReduces by ring and on the switch, at least 0, of
        those whose number modulo ``calls`` is the index. NaN if none was on the switch, and 0 if
        none was by ring: the rhythm is that on the switch then.
    """
    gaps_s = np.diff(history.starts_s)
    positions, on_switch = history.numbers[:-1] % calls, history.on_switch[:-1]
    found = np.full(calls, math.nan)
    for position in range(calls):
        at = positions == position
        by_ring, by_switch = gaps_s[at & ~on_switch], gaps_s[at & on_switch]
        if len(by_ring) < LEAST <= len(by_switch):
            found[position] = 0.0
        elif len(by_switch) >= LEAST:
            medians = np.median(by_ring[-NEWEST:]), np.median(by_switch[-NEWEST:])
            found[position] = max(0.0, medians[0] - medians[1])
    return found


def starts_by_ring_s(history: History, shifts_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return starts as if all AllReduces ran by ring, with the newest one at its own time."""
    saved_s = np.nan_to_num(shifts_s)[history.numbers % len(shifts_s)] * history.on_switch
    later_s = np.concatenate([[0.0], np.cumsum(saved_s[:-1])])
    return np.asarray(history.starts_s + (later_s - later_s[-1]))
