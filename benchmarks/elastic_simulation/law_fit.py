"""Fit of the scaling law to a measured table, with the models that it may not use left out."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from pandas import DataFrame
from scipy.optimize import least_squares

from presage.features.device.node_spread import spread
from presage.features.job.job_description import FP32_BYTES
from presage.features.tables.campaign import Campaign
from presage.schedulers.forecasters.scaling_law import LINK_KINDS, ScalingLaw
from presage.system.arrays import Array

_START = (0.1, *(math.log(s) for s in (5e-3, 1e-2, 1e-2, 8e9, 6e8, 1e9)), 0.0, 0.0, 0.0, -1.0)

_LEAST_S = 1e-6  # below it, the seconds of a synchronization cannot be told from 0


@dataclass(frozen=True)
class ScalingTable:
    """Measured steps as arrays of shape (rows,); ``one_device_s`` is at the model's middle batch.

    ``batch_ratio`` is the batch of each device over that batch.
    """

    model: Array
    gradient_bytes: Array
    batch_ratio: Array
    devices: Array
    nodes: Array
    one_device_s: Array
    step_s: Array


def scaling_table(campaign: Campaign) -> ScalingTable:
    """Return the rows of ``scale_out``."""
    frame: DataFrame = campaign.scale_out
    jobs = [campaign.jobs[job_id] for job_id in frame["job_id"]]
    nodes = [
        spread(row["nodes"], row["devices"], row["placement"]).nodes
        for row in frame.to_dict("records")
    ]
    model, batch = np.array([j.job.name for j in jobs]), np.array([j.job.batch_size for j in jobs])
    devices, step_s = frame["devices"].to_numpy(), frame["step_time_s"].to_numpy()
    middle, one = np.zeros(len(jobs)), np.zeros(len(jobs))
    for name in np.unique(model):
        solo = (model == name) & (devices == 1)
        chosen = middle_batch(batch[solo])
        middle[model == name] = chosen
        one[model == name] = np.median(step_s[solo & (batch == chosen)])
    gradient_bytes = np.array([j.parameters * FP32_BYTES for j in jobs], dtype=float)
    return ScalingTable(
        model, gradient_bytes, batch / middle, devices, np.array(nodes), one, step_s
    )  # fmt: skip


def middle_batch(batches: Collection[int] | Array) -> int:
    """Return the middle one of the distinct measured batch sizes."""
    distinct = sorted({int(batch) for batch in batches})
    return distinct[len(distinct) // 2]


def fit_law(table: ScalingTable, leave_out: Collection[str] = ()) -> ScalingLaw:
    """Fit the constants to the logarithms of the steps, all models with the same weight.

    The interval of a speed-up is the 80 % quantile of the errors on the fitted rows.
    """
    used = ~np.isin(table.model, list(leave_out))
    counts = {name: np.sum(table.model == name) for name in np.unique(table.model)}
    weight = np.array([1.0 / counts[name] ** 0.5 for name in table.model])[used]

    def errors(theta: Array) -> Array:
        return (np.log(_steps(theta, table)) - np.log(table.step_s))[used]

    found = least_squares(
        lambda theta: errors(theta) * weight, _START, loss="soft_l1", f_scale=0.01
    )
    shares, fixed, rates, widest, overlap = _parts(found.x)
    # Errors of one-device steps are those of another forecast: they cancel in a speed-up.
    error = float(np.quantile(np.abs(errors(found.x)), 0.8))
    return ScalingLaw(
        fixed_share=float(shares), fixed_s=_floats(fixed), bytes_per_s=_floats(rates),
        widest_power=_floats(widest), overlap=float(overlap), log_error=error,
    )  # fmt: skip


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def mean_error_percent(law: ScalingLaw, table: ScalingTable, model: str) -> float:
    """Return the mean absolute percentage error of the steps of a model."""
    rows = np.flatnonzero(table.model == model)
    steps = [
        law.step_s(
            table.one_device_s[i], table.gradient_bytes[i], table.batch_ratio[i],
            int(table.devices[i]), int(table.nodes[i]),
        )
        for i in rows
    ]  # fmt: skip
    return float(np.mean(np.abs(np.array(steps) / table.step_s[rows] - 1))) * 100


def _parts(theta: Array) -> tuple[float, Array, Array, Array, float]:
    k = LINK_KINDS
    share = min(max(float(theta[0]), 0.0), 0.9)
    fixed = np.maximum(np.exp(theta[1 : 1 + k]), _LEAST_S)
    rates = np.exp(theta[1 + k : 1 + 2 * k])
    overlap = 1.0 + math.exp(min(theta[-1], 3.0))
    return share, fixed, rates, theta[1 + 2 * k : 1 + 3 * k], overlap


def _steps(theta: Array, table: ScalingTable) -> Array:
    share, fixed, rates, widest, overlap = _parts(theta)
    link = np.minimum(table.nodes, LINK_KINDS) - 1
    compute_s = table.one_device_s * (share + (1 - share) * table.batch_ratio)
    ring = 2 * (table.devices - 1) / table.devices * table.gradient_bytes
    shared = np.ceil(table.devices / table.nodes) ** widest[link]
    sync_s = np.where(table.devices > 1, fixed[link] + ring * shared / rates[link], 0.0)
    steps: Array = (compute_s**overlap + sync_s**overlap) ** (1 / overlap)
    return steps
