"""Fit of the scaling law to measured steps on several GPUs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares, minimize

from presage.errors import TrainingError
from presage.features.scaling.scaling_fit import ScalingFit
from presage.features.scaling.scaling_law import LINK_KINDS, ScalingLaw
from presage.models.training.scaling_rows import ScalingTable
from presage.system.arrays import Array

MIN_MODELS = 3  # fewer tell little about how models differ
_START = (*(math.log(s) for s in (5e-3, 1e-2, 1e-2, 8e9, 6e8, 1e9)), 0.0, 0.0, 0.0, -1.0)
_LEAST_S = 1e-6  # below it, the seconds of a synchronization cannot be distinguished from 0
# Deviations that are fitted, with their initial values; a weak prior keeps them near. That of the
# computation is not fitted: it is the error of the forecast of a new model's step on one GPU.
_SPREADS = {
    "sync_spread": 0.5, "link_spread": 0.2, "residual_spread": 0.1, "noise": 0.03,
    "gpus_length": 0.5, "nodes_length": 0.5, "batch_length": 1.0,
}  # fmt: skip
_SAMPLED_ROWS = 60  # of each model, for the deviations


def fit_scaling_law(table: ScalingTable, leave_out: Collection[str] = ()) -> ScalingLaw:
    """Fit the constants to the logarithms of the steps, all models with the same weight.

    The deviations of jobs from the law have the highest marginal likelihood on sampled rows.

    Raises
    ------
    TrainingError
        Fewer than three models were measured.
    """
    names = [name for name in np.unique(table.model) if name not in leave_out]
    if len(names) < MIN_MODELS:
        raise TrainingError(
            f"the scaling law needs steps of {MIN_MODELS} models on several GPUs, found "
            f"{len(names)}; add a campaign with a table scale_out"
        )
    law = replace(_fit_constants([table.of(name) for name in names]), models=len(names))
    rng = np.random.default_rng(0)
    return _fit_spreads(law, [_sample(table.of(name), rng) for name in names])


def _fit_constants(tables: Sequence[ScalingTable]) -> ScalingLaw:
    def errors(theta: Array) -> Array:
        law = _law_of(theta)
        return np.concatenate(
            [np.log(one.steps(law).step_s / one.step_s) / len(one.step_s) ** 0.5 for one in tables]
        )

    return _law_of(least_squares(errors, _START, loss="soft_l1", f_scale=0.01).x)


def _law_of(theta: Array) -> ScalingLaw:
    fixed = np.maximum(np.exp(theta[:LINK_KINDS]), _LEAST_S)
    rates = np.exp(theta[LINK_KINDS : 2 * LINK_KINDS])
    return ScalingLaw(
        fixed_s=_floats(fixed), bytes_per_s=_floats(rates),
        widest_power=_floats(theta[2 * LINK_KINDS : 3 * LINK_KINDS]),
        overlap=1.0 + math.exp(min(float(theta[-1]), 2.9)),
    )  # fmt: skip


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _sample(table: ScalingTable, rng: np.random.Generator) -> ScalingTable:
    count = len(table.step_s)
    return table.rows(rng.choice(count, min(count, _SAMPLED_ROWS), replace=False))


def _fit_spreads(law: ScalingLaw, tables: Sequence[ScalingTable]) -> ScalingLaw:
    start = np.log(list(_SPREADS.values()))

    def law_of(logs: Array) -> ScalingLaw:
        values = np.clip(np.exp(logs), 1e-3, 100.0).tolist()
        return replace(law, **dict(zip(_SPREADS, values, strict=True)))

    def cost(logs: Array) -> float:
        likelihood = sum(_log_likelihood(law_of(logs), table) for table in tables)
        return float(0.5 * np.sum((logs - start) ** 2) - likelihood)

    return law_of(minimize(cost, start, method="L-BFGS-B", options={"maxiter": 25}).x)


def _log_likelihood(law: ScalingLaw, table: ScalingTable) -> float:
    return ScalingFit(law, table.steps(law), table.step_s).log_likelihood(table.step_s)


def mean_error_percent(law: ScalingLaw, table: ScalingTable, model: str) -> float:
    """Return the mean absolute percentage error of the steps of a model."""
    rows = table.of(model)
    return float(np.mean(np.abs(rows.steps(law).step_s / rows.step_s - 1))) * 100
