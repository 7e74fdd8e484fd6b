"""Measured co-locations, in which every member is once the victim of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from presage.features.colocation_member import (
    MEMBER_COLUMNS,
    SOLO_PROFILE,
    SoloProfile,
    member_matrix,
)
from presage.features.columns.schema import matrix
from presage.features.job.architecture_groups import architecture_group
from presage.features.quantities.quantity_registry import QUANTITIES, STEP_TIME
from presage.features.tables.campaign import COLOCATION, Campaign
from presage.models.training.solo_rows import find_solo_rows
from presage.pipelines.benchmark import benchmark_rows
from presage.pipelines.benchmark.benchmark_rows import release_name, shared_how
from presage.system.arrays import Array, Ints, Mask

METADATA_COLUMNS = ["row", "pair", *benchmark_rows.METADATA_COLUMNS]
# Columns that are equal for indistinguishable members of a co-location.
_EQUAL = [*COLOCATION, "job_id", "share", "sharing_mode"]


@dataclass(frozen=True)
class Colocated:
    """Members of co-locations, with one line for equal members of a co-location.

    Attributes
    ----------
    members : DataFrame
        The columns ``METADATA_COLUMNS``, of which ``pair`` names the co-location's jobs, and:
        ``colocation`` and ``slot``, a line's position in padded arrays; ``count``, the number of
        members it represents; ``speed``, co-located over solo (the mean of equal members), or NaN.
    columns : ndarray of shape (members, MEMBER_COLUMNS)
    features : ndarray of shape (members, full features)
        For the training domain, with the column ``precision`` of ``members``; empty if unknown.
    """

    members: pd.DataFrame
    columns: Array
    features: Array = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def is_victim(self) -> Mask:
        """Mask of the lines with a measured speed."""
        return self.members["speed"].notna().to_numpy(bool)

    @property
    def metadata(self) -> pd.DataFrame:
        """The victims."""
        return self.members.loc[self.is_victim, METADATA_COLUMNS].reset_index(drop=True)

    @property
    def measured(self) -> Array:
        """Normalised speed of the victims."""
        return self.members.loc[self.is_victim, "speed"].to_numpy(np.float64)

    @property
    def places(self) -> tuple[Ints, Ints]:
        """Co-location and slot of each line in padded arrays."""
        return self.members["colocation"].to_numpy(), self.members["slot"].to_numpy()

    @property
    def count(self) -> Array:
        """Number of members of each line, padded: (co-locations, slots)."""
        return self.padded(self.members["count"].to_numpy(np.float64))

    def padded(self, values: Array | Mask) -> Array:
        """Pad values per line to (co-locations, slots, ...), with 0 elsewhere."""
        where, slot = self.places
        out = np.zeros((where.max() + 1, slot.max() + 1, *values.shape[1:]))
        out[where, slot] = values
        return out

    def touched_by(self, lines: Mask) -> Mask:
        """Return the lines of all co-locations with a member in ``lines``."""
        together = self.members["colocation"].to_numpy()
        return np.isin(together, together[lines])

    def sum_of_others(self, values: Array) -> Array:
        """Return the sum of columns over each line's co-runners, shape (lines, columns)."""
        count = self.members["count"].to_numpy(np.float64)[:, None]
        totals = self.padded(count * values).sum(axis=1)
        others: Array = totals[self.members["colocation"].to_numpy()] - values
        return others


def colocated(campaigns: Sequence[Campaign]) -> Colocated:
    """Return the co-locations with a measured slowdown of any member."""
    found = [_from_campaign(one) for one in campaigns if one.colocations["slowdown"].notna().any()]
    if not found:
        nothing = pd.DataFrame(columns=[*METADATA_COLUMNS, "colocation", "slot", "count", "speed"])
        return Colocated(nothing, np.empty((0, len(MEMBER_COLUMNS))))
    members = pd.concat([members for members, _, _ in found], ignore_index=True)
    # Equal names in two campaigns are different co-locations.
    places = members.groupby([*COLOCATION, "folder"], sort=False)
    members["colocation"], members["slot"] = places.ngroup(), places.cumcount()
    return Colocated(
        _describe(members),
        np.concatenate([columns for _, columns, _ in found]),
        np.concatenate([features for _, _, features in found]),
    )


def _from_campaign(campaign: Campaign) -> tuple[pd.DataFrame, Array, Array]:
    """Return the lines of a campaign, their columns and their features."""
    every = campaign.colocations
    known = every["slowdown"].notna().groupby([every[name] for name in COLOCATION])
    ran = every[known.transform("any")].assign(speed=1 / every["slowdown"])
    equal = ran.groupby(_EQUAL, sort=False)
    lines = equal.first().assign(count=equal.size(), speed=equal["speed"].mean()).reset_index()
    placements = [campaign.placement(row) for row in lines.to_dict("records")]
    jobs = [placement.job.job for placement in placements]
    lines = lines.rename(columns={"job_id": "job", "device_kind": "device"}).assign(
        model=[job.name for job in jobs],
        family=[job.family for job in jobs],
        group=[architecture_group(job.family) for job in jobs],
        release=[release_name(job.framework_version) for job in jobs],
        precision=[job.precision for job in jobs],
        folder=str(campaign.folder),
    )
    solo = _profiles(campaign, equal.first().reset_index())
    features = matrix(placements, "full")
    return lines, member_matrix(features, solo), features


def _profiles(campaign: Campaign, lines: pd.DataFrame) -> SoloProfile:
    """Return the measured solo profile of each member.

    Its solo step time is the one recorded with the co-location, if there is one.
    """
    solo = campaign.executions[campaign.executions["failure"] == ""]
    positions = find_solo_rows(solo, lines)
    columns = {name: QUANTITIES[name].column for name in SOLO_PROFILE}
    by_run = solo.reindex(columns=list(columns.values())).astype(np.float64)
    measured = {
        name: np.append(by_run[column].to_numpy(), np.nan)[positions]
        for name, column in columns.items()
    }
    own = lines["solo_step_time_s"].to_numpy(np.float64)
    step_s = measured[STEP_TIME.name]
    return measured | {STEP_TIME.name: np.where(np.isfinite(own), own, step_s)}


def _describe(members: pd.DataFrame) -> pd.DataFrame:
    """Add columns that name a victim and its co-runners."""
    by_place = members.groupby("colocation")
    names = members["job"].where(
        members["count"] == 1, members["count"].astype(str) + " x " + members["job"]
    )
    with_jobs = names.groupby(members["colocation"]).transform(" + ".join)
    pair = by_place["job"].transform(lambda jobs: " + ".join(sorted(set(jobs))))
    where = members["share"].map("{:g}".format) + " of " + members["device"]
    where += members["sharing_mode"].map(shared_how)
    row = members["job"] + " in " + with_jobs + " on " + where + ", " + members["campaign"]
    return members.assign(row=row, pair=pair)
