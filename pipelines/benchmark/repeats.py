"""Error floor of a benchmark: how much repeated measurements of the same thing differ.

No forecast can have a smaller error on single measurements, so tables show it beside the errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import STEP_TIME
from presage.features.tables.campaign import COLOCATION, Campaign
from presage.models.calibration.error_metrics import point_metrics
from presage.system.arrays import Array

# What is equal in repeated solo runs. A solo run just before a co-location repeats that of its job.
_SAME_RUN = ["job_id", "device_kind", "share", "sharing_mode", "versions"]
_SAME_MEMBER = [*COLOCATION, "job_id", "share", "sharing_mode"]


def solo_repeats(campaigns: Sequence[Campaign], quantity: Quantity) -> list[Array]:
    """Return the measurements of each solo run that was measured several times.

    The solo references of co-locations count for step times. A reference that equals the solo run
    to the last digit is that run.
    """
    parts = []
    for campaign in campaigns:
        runs = campaign.executions[campaign.executions["failure"] == ""]
        parts.append(runs[_SAME_RUN].assign(value=runs[quantity.column]))
        if quantity is STEP_TIME:
            parts.append(_solo_references(campaign))
    return _groups(pd.concat(parts, ignore_index=True), _SAME_RUN)


def _solo_references(campaign: Campaign) -> pd.DataFrame:
    """Return the solo references of co-location members, as rows of ``_SAME_RUN`` and ``value``.

    Members wait while one of them is timed, so a reference under time-slicing is a run on the
    exclusive device.
    """
    members = campaign.colocations
    mode = members["sharing_mode"].where(members["sharing_mode"] != "time-slice", "exclusive")
    return members[_SAME_RUN].assign(sharing_mode=mode, value=members["solo_step_time_s"])


def colocated_repeats(campaigns: Sequence[Campaign]) -> list[Array]:
    """Return the speeds of equal members of each co-location that has several."""
    parts = [one.colocations.assign(value=1 / one.colocations["slowdown"]) for one in campaigns]
    return _groups(pd.concat(parts, ignore_index=True), _SAME_MEMBER)


def _groups(rows: pd.DataFrame, key: list[str]) -> list[Array]:
    known = rows[rows["value"].notna() & (rows["value"] != 0)].drop_duplicates([*key, "value"])
    groups = known.groupby(key, sort=True)["value"]
    return [values.to_numpy(np.float64) for _, values in groups if len(values) > 1]


def floor_figures(repeats: Sequence[Array]) -> dict[str, float]:
    """Return the error of predicting each measurement by the mean of its repetitions, in per cent.

    Empty without repetitions.
    """
    if not repeats:
        return {}
    measured = np.concatenate(repeats)
    others = np.concatenate([(one.sum() - one) / (len(one) - 1) for one in repeats])
    return point_metrics(measured, others)
