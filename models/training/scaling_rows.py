"""Measured steps on several GPUs, to which the scaling law is fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from presage.errors import TableError
from presage.features.device.node_spread import spread
from presage.features.job.job_description import FP32_BYTES
from presage.features.scaling.scaling_law import ScaledSteps, ScalingLaw
from presage.features.tables.campaign import Campaign
from presage.system.arrays import Array, Ints, Mask, Names


@dataclass(frozen=True)
class ScalingTable:
    """Measured steps on several GPUs as arrays of shape (rows,).

    Attributes
    ----------
    model : ndarray of str
    gradient_bytes : ndarray
    batch : ndarray
        Samples of each GPU.
    gpus, nodes : ndarray
    compute_s : ndarray
        Measured step on one GPU with that batch.
    step_s : ndarray
    """

    model: Names
    gradient_bytes: Array
    batch: Array
    gpus: Array
    nodes: Array
    compute_s: Array
    step_s: Array

    def of(self, model: str) -> ScalingTable:
        """Return the rows of a model."""
        return self.rows(self.model == model)

    def rows(self, chosen: Mask | Ints) -> ScalingTable:
        """Return some of the rows."""
        return ScalingTable(
            self.model[chosen], self.gradient_bytes[chosen], self.batch[chosen],
            self.gpus[chosen], self.nodes[chosen], self.compute_s[chosen], self.step_s[chosen],
        )  # fmt: skip

    def as_frame(self) -> pd.DataFrame:
        """Return a table with a column for each array."""
        return pd.DataFrame({one.name: getattr(self, one.name) for one in fields(self)})

    def steps(self, law: ScalingLaw) -> ScaledSteps:
        """Return the steps that a law predicts."""
        return law.steps(self.compute_s, self.gradient_bytes, self.gpus, self.nodes, self.batch)


def scaling_table(campaigns: Sequence[Campaign]) -> ScalingTable:
    """Return the rows of ``scale_out`` on several GPUs whose job was measured on one as well."""
    rows = [row for campaign in campaigns for row in _rows(campaign)]
    model = np.array([row[0] for row in rows], dtype=object)
    values = np.array([row[1:] for row in rows], dtype=np.float64).reshape(len(rows), 6)
    return ScalingTable(model, *values.T)


def _rows(campaign: Campaign) -> Iterator[tuple[str, float, float, float, float, float, float]]:
    frame = campaign.scale_out
    solo = frame[frame["devices"] == 1].groupby(["job_id", "device_kind"])["step_time_s"].median()
    for row in frame[frame["devices"] > 1].to_dict("records"):
        compute_s = solo.get((row["job_id"], row["device_kind"]))
        job = campaign.jobs[row["job_id"]]
        if compute_s is None or not job.trains:
            continue
        where = spread(row["nodes"], row["devices"], row["placement"])
        yield (
            job.job.name, float(job.parameters * FP32_BYTES), job.job.batch_size, where.devices,
            where.nodes, compute_s, row["step_time_s"],
        )  # fmt: skip


def read_scaling_table(frame: pd.DataFrame) -> ScalingTable:
    """Return the table of :meth:`ScalingTable.as_frame`.

    Raises
    ------
    TableError
        A column is missing.
    """
    names = [one.name for one in fields(ScalingTable)]
    missing = [name for name in names if name not in frame]
    if missing:
        raise TableError(f"scaling.parquet: no column {missing[0]!r}; run featurize again")
    model, *numbers = (frame[name].to_numpy() for name in names)
    return ScalingTable(model, *(column.astype(np.float64) for column in numbers))
