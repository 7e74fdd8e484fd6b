"""Which row of the jobs measured alone is a member's of a co-location."""

from __future__ import annotations

import numpy as np
import pandas as pd

from presage.system.arrays import Ints

SOLO_KEY = ["job_id", "device_kind", "machine", "campaign"]  # what names a solo row, with its share


def find_solo_rows(solo: pd.DataFrame, members: pd.DataFrame) -> Ints:
    """Position in ``solo`` of each member's job alone; -1 of one that nobody measured alone.

    At the member's own share of the device, else at the largest share that was measured.
    """
    shares = solo["share"].to_numpy(np.float64)
    found = _find_rows(solo, members, [*SOLO_KEY, "share"], np.arange(len(solo)))
    largest_first = np.argsort(-shares, kind="stable")
    return np.where(found >= 0, found, _find_rows(solo, members, SOLO_KEY, largest_first))


def _find_rows(solo: pd.DataFrame, members: pd.DataFrame, names: list[str], order: Ints) -> Ints:
    keys = pd.MultiIndex.from_frame(solo[names].iloc[order])
    first = ~keys.duplicated()
    at = keys[first].get_indexer(pd.MultiIndex.from_frame(members[names]))
    return np.append(order[first], -1)[at]  # -1, of nobody, is the last
