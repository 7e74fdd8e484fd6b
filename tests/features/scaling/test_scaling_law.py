"""The scaling law: sums of computation and synchronization."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.features.scaling.scaling_law import (
    DEFAULT_LAW,
    ScaledSteps,
    ScalingLaw,
    parse_law,
)

BERT_BYTES = 4 * 109_483_778


def steps_of(
    compute_s: float, sizes: list[tuple[int, int]], gradient_bytes: float = BERT_BYTES
) -> ScaledSteps:
    gpus, nodes = np.array(sizes, dtype=np.float64).T
    return DEFAULT_LAW.steps(compute_s / gpus, gradient_bytes, gpus, nodes, 1 / gpus)


def test_a_step_on_one_gpu_needs_no_synchronization():
    found = steps_of(0.5, [(1, 1)])

    assert found.step_s.tolist() == [0.5]
    assert found.sync_share.tolist() == [0.0]


def test_two_nodes_are_slower_than_one():
    near, apart = steps_of(0.7, [(2, 1), (2, 2)]).step_s

    assert 0.35 < near < apart


@given(st.floats(1e-6, 1e3), st.floats(0, 1e20), st.integers(1, 65_536), st.integers(1, 4096))
def test_steps_are_finite_and_at_least_their_longer_part(compute_s, gradient_bytes, gpus, nodes):
    found = steps_of(compute_s, [(gpus, min(nodes, gpus))], gradient_bytes)

    assert compute_s / gpus * (1 - 1e-9) <= found.step_s[0] < math.inf
    assert 0 <= found.sync_share[0] <= 1


@pytest.mark.parametrize(
    "values",
    [
        {"overlap": 0.5},
        {"overlap": math.inf},
        {"noise": 0.0},
        {"compute_spread": math.nan},
        {"fixed_s": (1e-3, 1e-3)},
        {"bytes_per_s": (1e9, 0.0, 1e9)},
    ],
)
def test_invalid_constants_are_rejected(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        ScalingLaw(**values)


def test_a_law_survives_json():
    assert parse_law(DEFAULT_LAW.as_json()) == DEFAULT_LAW


@pytest.mark.parametrize(
    "changes",
    [{"noise": None}, {"noise": "0.1"}, {"fixed_s": [1e-3, True, 1e-3]}, {"more": 1.0}],
)
def test_json_that_is_no_law_is_rejected(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        parse_law(DEFAULT_LAW.as_json() | changes)
