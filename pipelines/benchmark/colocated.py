"""Measured co-locations: every member is the victim of the others once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from presage.features.colocation_member import (
    MEMBER_COLUMNS,
    SOLO_PROFILE,
    SoloProfile,
    member_matrix,
)
from presage.features.columns.schema import matrix
from presage.features.quantities.registry import QUANTITIES, STEP_TIME
from presage.features.tables.campaign import COLOCATION, Campaign
from presage.models.training.solo_rows import positions_alone
from presage.pipelines.benchmark.rows import shared_how
from presage.system.arrays import Array, Ints, Mask

WHO = ["row", "pair", "job", "model", "family", "device", "campaign"]
# Members of one co-location that nobody can tell apart.
_EQUAL = [*COLOCATION, "job_id", "share", "sharing_mode"]


@dataclass(frozen=True)
class Colocated:
    """Members of co-locations, equal ones of a co-location in one line.

    Attributes
    ----------
    members : DataFrame
        The columns ``WHO``, of which ``pair`` names the co-location's jobs, and: ``colocation``
        and ``slot``, a line's place in padded arrays; ``count``, how many members it stands for;
        ``speed``, co-located over alone (the mean of equal members), NaN where it is not known.
    columns : ndarray of shape (members, MEMBER_COLUMNS)
    """

    members: pd.DataFrame
    columns: Array

    @property
    def is_victim(self) -> Mask:
        """Lines whose own speed was measured."""
        return self.members["speed"].notna().to_numpy(bool)

    @property
    def who(self) -> pd.DataFrame:
        """The victims."""
        return self.members.loc[self.is_victim, WHO].reset_index(drop=True)

    @property
    def measured(self) -> Array:
        """Normalised speed of the victims."""
        return self.members.loc[self.is_victim, "speed"].to_numpy(np.float64)

    @property
    def places(self) -> tuple[Ints, Ints]:
        """Of each line its co-location and its slot in padded arrays."""
        return self.members["colocation"].to_numpy(), self.members["slot"].to_numpy()

    @property
    def count(self) -> Array:
        """How many members each line stands for, padded: (co-locations, slots)."""
        return self.padded(self.members["count"].to_numpy(np.float64))

    def padded(self, values: Array | Mask) -> Array:
        """A number or a row of columns per line -> (co-locations, slots, ...), 0 elsewhere."""
        where, slot = self.places
        out = np.zeros((where.max() + 1, slot.max() + 1, *values.shape[1:]))
        out[where, slot] = values
        return out

    def touched_by(self, lines: Mask) -> Mask:
        """Lines of the co-locations that any of ``lines`` is a member of."""
        together = self.members["colocation"].to_numpy()
        return np.isin(together, together[lines])

    def beside(self, values: Array) -> Array:
        """Of each line the sum of a row of columns over its co-runners, shape (lines, columns)."""
        count = self.members["count"].to_numpy(np.float64)[:, None]
        totals = self.padded(count * values).sum(axis=1)
        others: Array = totals[self.members["colocation"].to_numpy()] - values
        return others


def colocated(campaigns: Sequence[Campaign]) -> Colocated:
    """Co-locations in which somebody's slowdown was measured."""
    found = [_of_campaign(one) for one in campaigns if one.colocations["slowdown"].notna().any()]
    if not found:
        nothing = pd.DataFrame(columns=[*WHO, "colocation", "slot", "count", "speed"])
        return Colocated(nothing, np.empty((0, len(MEMBER_COLUMNS))))
    members = pd.concat([members for members, _ in found], ignore_index=True)
    # Equal names of two campaigns are two co-locations.
    places = members.groupby([*COLOCATION, "folder"], sort=False)
    members["colocation"], members["slot"] = places.ngroup(), places.cumcount()
    return Colocated(_worded(members), np.concatenate([columns for _, columns in found]))


def _of_campaign(campaign: Campaign) -> tuple[pd.DataFrame, Array]:
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
        folder=str(campaign.folder),
    )
    alone = _profiles(campaign, equal.first().reset_index())
    return lines, member_matrix(matrix(placements), alone)


def _profiles(campaign: Campaign, lines: pd.DataFrame) -> SoloProfile:
    """Return the measured solo profile of each member.

    Its solo step time is the one recorded with the co-location, if there is one.
    """
    alone = campaign.executions[campaign.executions["failure"] == ""]
    positions = positions_alone(alone, lines)
    columns = {name: QUANTITIES[name].column for name in SOLO_PROFILE}
    told = alone.reindex(columns=list(columns.values())).astype(np.float64)
    measured = {
        name: np.append(told[column].to_numpy(), np.nan)[positions]
        for name, column in columns.items()
    }
    own = lines["solo_step_time_s"].to_numpy(np.float64)
    step_s = measured[STEP_TIME.name]
    return measured | {STEP_TIME.name: np.where(np.isfinite(own), own, step_s)}


def _worded(members: pd.DataFrame) -> pd.DataFrame:
    """With the columns of words: who a victim is, and beside whom."""
    by_place = members.groupby("colocation")
    names = members["job"].where(
        members["count"] == 1, members["count"].astype(str) + " x " + members["job"]
    )
    beside = names.groupby(members["colocation"]).transform(" + ".join)
    pair = by_place["job"].transform(lambda jobs: " + ".join(sorted(set(jobs))))
    where = members["share"].map("{:g}".format) + " of " + members["device"]
    where += members["sharing_mode"].map(shared_how)
    row = members["job"] + " in " + beside + " on " + where + ", " + members["campaign"]
    return members.assign(row=row, pair=pair)
