"""Component factors: their sum, and forecasts of unseen mixtures."""

import math

import numpy as np
import pytest
import torch

from presage.features.columns.column import ON_TOP
from presage.features.columns.schema import FEATURE_SETS, columns
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.networks.component_factors import LOG_FACTOR_SCALE, ComponentFactors
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    fit_scalar,
    predict_quantiles,
    select_inputs,
    transform_features,
)

COLUMNS = columns("full")
TARGET = QUANTITIES["step_time"]
INPUTS = select_inputs(TARGET.inputs, "full")
DENSE, SPARSE, LOADING, LAYOUT = (
    COLUMNS.index(name)
    for name in (
        "time_share.MatMul forward 3", "time_share.Embedding forward", "loading_share",
        "channels_last",
    )
)  # fmt: skip


def transformed(n: int, **shares: np.ndarray | float) -> torch.Tensor:
    raw = np.zeros((n, len(COLUMNS)))
    for name, position in (("dense", DENSE), ("sparse", SPARSE), ("loading", LOADING)):
        raw[:, position] = shares.get(name, 0.0)
    raw[:, LAYOUT] = shares.get("layout", 0.0)
    return torch.from_numpy(transform_features(raw, "full")).float()


def test_components_are_shares_of_time_or_memory_and_the_rest_is_added():
    full = FEATURE_SETS["full"]
    for predictor, prefix in (("step_time", "time_share."), ("memory", "memory_share.")):
        parts = [full[i] for i in select_inputs(QUANTITIES[predictor].inputs, "full").components]
        assert all(c.name.startswith(prefix) for c in parts if c.prior_weight == 1)
        assert {c.prior_weight for c in parts} == {1.0, ON_TOP}
    assert select_inputs(QUANTITIES["compute_utilization"].inputs, "full").components == ()


def test_initial_factors_give_about_the_prior():
    parts = ComponentFactors(2, INPUTS.components)

    found = parts(transformed(1, dense=0.5, sparse=0.2, loading=2.0))

    assert found.shape == (2, 1, 1)
    assert found.detach().flatten().tolist() == pytest.approx([math.log(1 + 2 * ON_TOP)] * 2)


def test_a_component_at_a_third_of_its_speed_takes_three_times_its_share():
    parts = ComponentFactors(1, INPUTS.components)
    with torch.no_grad():
        parts.factor_weight[0, 0, INPUTS.components.index(DENSE)] = math.log(3) / LOG_FACTOR_SCALE
        # No learned condition changes a component by more than a factor of two.
        position = INPUTS.components.index(DENSE)
        parts.condition_weight[0, 0, position] = math.log(50) / LOG_FACTOR_SCALE
        parts.factor_weight[0, 0, -1] = math.log(5) / LOG_FACTOR_SCALE  # the rest

    for layout, times in ((0, 3), (1, 6)):
        (found,) = parts(transformed(1, dense=0.5, sparse=0.4, layout=layout)).exp().flatten()
        assert found.item() == pytest.approx(0.5 * times + 0.4 + 0.1 * 5, rel=1e-3)


def test_factors_learnt_from_pure_jobs_predict_mixtures():
    rng = np.random.default_rng(0)
    mixed = rng.uniform(0.2, 0.8, 100)
    dense = np.concatenate([rng.uniform(0, 0.02, 100), rng.uniform(0.98, 1, 100), mixed])
    x = transformed(300, dense=dense, sparse=1 - dense).double().numpy()
    y = np.log(dense + 12 * (1 - dense))  # embeddings at a twelfth of their speed
    weights = np.concatenate([np.ones(200), np.zeros(100)])[None]
    config = FitConfig(16, 600, 0.01, 0.1, ensemble=1, seed=0)

    found = predict_quantiles(fit_scalar(x, y, weights, INPUTS, config), x)[0, :, LEVELS.index(0.5)]

    assert np.abs(found - y)[200:].mean() < 0.1
