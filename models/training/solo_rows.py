"""Match of co-location members to the rows of their solo measurements."""

from __future__ import annotations

import numpy as np
import pandas as pd

from presage.system.arrays import Ints

SOLO_KEY = ["job_id", "device_kind", "machine", "campaign"]  # with the share: unique


def find_solo_rows(solo: pd.DataFrame, members: pd.DataFrame) -> Ints:
    """Return the position in ``solo`` of each member's job, -1 without a solo measurement.

    The match is at the member's share of the device, else at the largest measured share.
    """
    shares = solo["share"].to_numpy(np.float64)
    found = _find_rows(solo, members, [*SOLO_KEY, "share"], np.arange(len(solo)))
    largest_first = np.argsort(-shares, kind="stable")
    return np.where(found >= 0, found, _find_rows(solo, members, SOLO_KEY, largest_first))


def _find_rows(solo: pd.DataFrame, members: pd.DataFrame, names: list[str], order: Ints) -> Ints:
    keys = pd.MultiIndex.from_frame(solo[names].iloc[order])
    first = ~keys.duplicated()
    at = keys[first].get_indexer(pd.MultiIndex.from_frame(members[names]))
    return np.append(order[first], -1)[at]  # position -1 selects the appended -1
