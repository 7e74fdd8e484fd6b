"""Measured rows of a task: placements and their labels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from presage.features.job.architecture_groups import architecture_group
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.quantity import Quantity
from presage.features.tables.campaign import Campaign
from presage.system.arrays import Array, Names

# What a row is of; each is a way to leave rows out.
METADATA_COLUMNS = ("job", "model", "family", "group", "device", "release", "source", "campaign")


@dataclass(frozen=True)
class Rows:
    """Solo jobs, one per row.

    Attributes
    ----------
    metadata : DataFrame
        Columns row (a job, device, share and campaign in words) and ``METADATA_COLUMNS``.
    placements : sequence of Placement
    measured : ndarray of shape (rows,)
        The label, in the quantity's unit; NaN of a run that failed.
    """

    metadata: pd.DataFrame
    placements: Sequence[Placement]
    measured: Array

    def __len__(self) -> int:
        return len(self.metadata)

    @property
    def devices(self) -> Names:
        """Kinds of the devices."""
        return self.metadata["device"].to_numpy(object)

    def take(self, keep: np.ndarray) -> Rows:
        """Return the rows selected by a mask or positions."""
        positions = np.arange(len(self))[keep]
        return Rows(
            self.metadata.iloc[positions].reset_index(drop=True),
            [self.placements[i] for i in positions],
            self.measured[positions],
        )


def release_name(version: str) -> str:
    """Return the release of a framework version: "2.9" of "2.9.1", "unknown" of ""."""
    return ".".join(version.split(".")[:2]) or "unknown"


def shared_how(mode: str) -> str:
    """Describe a sharing mode, unless the device is exclusive or time-sliced."""
    return "" if mode in ("exclusive", "time-slice") else f" by {mode}"


def solo_rows(
    campaigns: Sequence[Campaign],
    quantity: Quantity,
    required: Callable[[JobFeatures], bool],
    *,
    failures: Collection[str] = (),
) -> Rows:
    """Return solo runs of the wanted jobs in which the quantity was measured.

    Failed runs are included only for the kinds in ``failures``. 0 is a measurement of a fraction,
    and a missing value of a scale.
    """
    column = quantity.column
    metadata, placements, measured = [], [], []
    for campaign in campaigns:
        for row in campaign.executions.to_dict("records"):
            job = campaign.jobs[row["job_id"]]
            failed = row["failure"] in failures
            value = np.nan if row["failure"] or row[column] is None else float(row[column])
            if value == 0 and quantity.is_scale:
                value = np.nan
            if not (failed or np.isfinite(value)) or not required(job):
                continue
            placement = campaign.placement(row)
            placements.append(placement)
            measured.append(value)
            device, share = row["device_kind"], placement.share.fraction
            mode = shared_how(row["sharing_mode"])
            metadata.append(
                {
                    "row": f"{row['job_id']} on {share:g} of {device}{mode}, {row['campaign']}",
                    "job": row["job_id"],
                    "model": job.job.name,
                    "family": job.job.family,
                    "group": architecture_group(job.job.family),
                    "device": device,
                    "release": release_name(placement.job.job.framework_version),
                    "source": row["source"],
                    "campaign": row["campaign"],
                }
            )
    frame = pd.DataFrame(metadata, columns=["row", *METADATA_COLUMNS])
    return Rows(frame, placements, np.array(measured, dtype=np.float64))
