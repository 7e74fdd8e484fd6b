"""Loss curves: points, both kinds of rows, and no effect on the networks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from presage.features.columns.schema import columns
from presage.models.training.fit import FitConfig, fit_scalar, select_inputs
from presage.models.training.loss_curves import (
    MOST_ROWS,
    POINTS,
    LossCurves,
    observed_rows,
    observed_steps,
)
from presage.models.training.torch_settings import make_torch_deterministic

CONFIG = FitConfig(8, 60, 0.02, 0.1, ensemble=1, seed=0, batch=64, jitter=0.1)


@given(st.integers(1, 5000))
def test_observed_steps_begin_with_the_first_and_end_with_the_last(steps):
    observed = observed_steps(steps)

    assert {1, steps} <= observed <= set(range(1, steps + 1))
    assert len(observed) == min(POINTS, steps)


@given(st.integers(1, 20_000))
def test_observed_rows_are_spread_over_all_rows(rows):
    observed = observed_rows(rows)

    assert len(observed) == min(MOST_ROWS, rows)
    assert observed[0] == 0
    assert (np.diff(observed) > 0).all()
    assert len(observed) == 1 or observed[-1] == rows - 1


def test_means_are_by_split_and_kind_of_row():
    curves = LossCurves(
        ["job", "job", "family"],
        training=np.array([[1, 1, 0, 0], [0, 0, 1, 3], [1, 0, 0, 0]]),
        validation=np.array([[0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]),
    )
    losses = np.array([[1, 3, 9, 100], [2, 4, 8, 4], [7, 100, 100, 100]])
    curves.observe(5, losses)
    by_split = curves.table().set_index("split")

    # Members: (1 + 3) / 2 and (8 + 3 * 4) / 4 on training rows; 9 and (2 + 4) / 2 on the others.
    assert by_split.loc["job"].to_dict() == {"step": 5, "training": 3.5, "validation": 6}
    assert by_split.loc["family", "training"] == 7
    assert by_split["validation"].isna().to_dict() == {"job": False, "family": True}


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, len(columns("full"))))
    return x, 2 * x[:, 0] + 0.1 * rng.normal(size=200)


def fitted(rows, observe=None):
    make_torch_deterministic()
    x, y = rows
    weights = np.ones((2, 200))
    weights[0, :100] = weights[1, 100:] = 0
    read = select_inputs(columns("full")[:4], "full")
    return fit_scalar(x, y, weights, read, CONFIG, observe=observe)


def test_observing_does_not_change_the_networks(rows):
    plain = fitted(rows).state_dict()
    watched = fitted(rows, lambda step, losses: None).state_dict()

    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_the_loss_of_held_out_rows_ends_above_that_of_training_rows(rows):
    training = np.repeat([[0, 1], [1, 0]], 100, axis=1)
    curves = LossCurves(["job", "job"], training, 1 - training)
    fitted(rows, curves.observe)
    table = curves.table()

    assert list(table["step"]) == sorted(observed_steps(CONFIG.steps))
    first, last = table.iloc[0], table.iloc[-1]
    assert last["training"] < 0.5 * first["training"]
    assert last["validation"] < 0.5 * first["validation"]
    assert last["training"] < last["validation"]
