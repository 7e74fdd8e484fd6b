"""Rows of steps over several devices: the jobs, their spread, and the step times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from presage.errors import InvalidJobError, TableError
from presage.features.columns.schema import columns, matrix
from presage.features.device.node_spread import Spread, spread
from presage.features.placement import Placement
from presage.features.tables.campaign import Campaign
from presage.system.arrays import Array

METADATA_COLUMNS = (
    "row", "job", "model", "family", "device", "campaign", "placement", "count", "batch", "kind",
)  # fmt: skip
FACTS = ("batch_size", "gradient_bytes", "roofline_s", "flops_per_s", "bytes_per_s")
LEAST_SHARE_OF_STEP = 0.05  # minimum share of compute in a step


@dataclass(frozen=True)
class ScaleRows:
    """Training jobs on one or more devices, one per row.

    Attributes
    ----------
    metadata : DataFrame
        Columns row, job, model, family, device, campaign, and further columns for splits:
        placement (devices of each node), count (of devices), batch; and kind, which all batch
        sizes of a job share.
    facts : DataFrame
        Columns ``FACTS``, of the job and one device; and alone_s, the step time on a single
        device if the row determines it, else NaN.
    spreads : sequence of Spread
    measured : ndarray of shape (rows,)
        Seconds of a step.
    """

    metadata: pd.DataFrame
    facts: pd.DataFrame
    spreads: Sequence[Spread]
    measured: Array

    def __len__(self) -> int:
        return len(self.metadata)

    def followed_by(self, others: ScaleRows) -> ScaleRows:
        """Return these rows followed by the others."""
        return ScaleRows(
            pd.concat([self.metadata, others.metadata], ignore_index=True),
            pd.concat([self.facts, others.facts], ignore_index=True),
            [*self.spreads, *others.spreads],
            np.concatenate([self.measured, others.measured]),
        )


def scale_rows(campaigns: Sequence[Campaign]) -> ScaleRows:
    """Return the steps of `scale_out`, and of the solo runs of its jobs.

    Raises
    ------
    TableError
        A row has more nodes than devices, or a placement with another number of devices.
    """
    metadata, facts, spreads, measured = [], [], [], []
    for campaign in campaigns:
        known: dict[tuple[Any, ...], dict[str, float]] = {}
        for row in _steps(campaign):
            job = campaign.jobs[row["job_id"]]
            if not job.trains:
                continue
            try:
                where = spread(row["nodes"], row["devices"], row["placement"])
            except InvalidJobError as error:
                raise TableError(f"{campaign.folder}: {row['job_id']}: {error}") from error
            key = (row["job_id"], row["device_kind"], row["machine"], row["versions"])
            if key not in known:
                known[key] = _facts(campaign.placement(row))
            words = row["placement"] or f"{where.devices} devices of {where.nodes} nodes"
            metadata.append(
                {
                    "row": f"{row['job_id']} on {words} of {row['device_kind']}, {row['campaign']}",
                    "job": row["job_id"],
                    "model": job.job.name,
                    "family": job.job.family,
                    "device": row["device_kind"],
                    "campaign": row["campaign"],
                    "placement": words,
                    "count": str(where.devices),
                    "batch": str(job.job.batch_size),
                    "kind": f"{job.job.name} in {job.job.precision} on {row['device_kind']}",
                }
            )
            facts.append(known[key] | {"alone_s": _solo_s(row, where)})
            spreads.append(where)
            measured.append(row["step_time_s"])
    return ScaleRows(
        pd.DataFrame(metadata, columns=list(METADATA_COLUMNS)),
        pd.DataFrame(facts, columns=[*FACTS, "alone_s"]),
        spreads,
        np.array(measured, dtype=np.float64),
    )


def _steps(campaign: Campaign) -> Iterator[dict[Any, Any]]:
    """Yield rows of `scale_out`, then solo runs of its jobs that are not in it."""
    whole = {"share": 1.0, "sharing_mode": "exclusive"}
    scaled, solo = set(), set()
    for row in campaign.scale_out.to_dict("records"):
        key = (row["job_id"], row["device_kind"])
        scaled.add(key)
        if row["devices"] == 1:
            solo.add(key)
        yield row | whole
    for row in campaign.executions.to_dict("records"):
        key = (row["job_id"], row["device_kind"])
        ran = row["share"] == 1 and not row["failure"] and row["step_time_median_s"] > 0
        if ran and key in scaled - solo:
            one = {"nodes": 1, "devices": 1, "placement": "1", "sync_time_s": None}
            yield row | one | {"step_time_s": row["step_time_median_s"]}


def _solo_s(row: Mapping[Any, Any], where: Spread) -> float:
    sync_s = row["sync_time_s"]
    if sync_s is not None and np.isfinite(sync_s):
        return float(max(row["step_time_s"] - sync_s, LEAST_SHARE_OF_STEP * row["step_time_s"]))
    return float(row["step_time_s"]) if where.devices == 1 else np.nan


def _facts(placement: Placement) -> dict[str, float]:
    job, device = placement.job, placement.device
    roofline = matrix([placement], "full")[0, columns("full").index("roofline_s")]
    values = (
        job.job.batch_size, job.memory.gradient_bytes, roofline,
        device.flops_per_s(job.job.precision), device.memory_bandwidth_bytes_per_s,
    )  # fmt: skip
    return {name: float(value) for name, value in zip(FACTS, values, strict=True)}
