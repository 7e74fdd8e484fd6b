"""The scaling law: sums of computation and synchronization, with intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.speedup import Speedup, SpeedupRequest, clean_speedup, fewest_nodes
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.forecasters.noisy import Noisy
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.forecasters.scaling_law import DEFAULT_LAW, ScalingLaw
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from tests.schedulers.clusters import cluster, job

BERT_BYTES = 4 * 109_483_778


def test_a_step_on_one_device_needs_no_synchronization():
    assert DEFAULT_LAW.step_s(0.5, BERT_BYTES, 1.0, 1, 1) == 0.5


def test_the_request_itself_is_certain():
    found = DEFAULT_LAW.speedup(0.7, BERT_BYTES, requested=(4, 1), size=(4, 1))
    assert found == Speedup(1.0, 1.0, 1.0)


def test_two_nodes_are_slower_than_one():
    one, two = (
        DEFAULT_LAW.speedup(0.7, BERT_BYTES, requested=(1, 1), size=(2, nodes)) for nodes in (1, 2)
    )
    assert two.median < one.median < 2.0
    assert two.low < two.median < two.high


@given(
    st.floats(1e-3, 10.0), st.floats(0, 1e10), st.integers(1, 64), st.integers(1, 64),
    st.integers(1, 16),
)  # fmt: skip
def test_speedups_are_finite_and_below_the_number_of_devices(one_s, gradient, before, after, nodes):
    nodes = min(nodes, after)
    found = DEFAULT_LAW.speedup(one_s, gradient, requested=(before, 1), size=(after, nodes))
    assert 0 < found.low <= found.median <= found.high < math.inf
    alone = DEFAULT_LAW.speedup(one_s, gradient, requested=(1, 1), size=(after, nodes))
    assert alone.median <= after * (1 + 1e-9)


@pytest.mark.parametrize(
    "values",
    [
        {"overlap": 0.5},
        {"fixed_share": 1.5},
        {"bytes_per_s": (1e9, 0.0, 1e9)},
        {"overlap": math.inf},
    ],
)
def test_constants_that_cannot_be_are_rejected(values):
    with pytest.raises(ConfigError):
        ScalingLaw(**values)


def test_without_a_forecast_devices_speed_nothing_up():
    one = job("a", gpus=4, max_gpus=8)
    for missing in (None, Speedup(math.nan, 1.0, 1.0), Speedup(-1.0, 1.0, 1.0)):
        assert clean_speedup(missing, one, 8) == Speedup(1.0, 1.0, 1.0)
        assert clean_speedup(missing, one, 1) == Speedup(0.25, 0.25, 1.0)
    assert Forecasts(NoForecasts(), cluster(8)).speedup(one, "v100", 8, 1).median == 1.0


def test_an_oracle_knows_the_true_speedup():
    one = job("a", gpus=2)
    oracle = Oracle(TraceDurations({"a": 60.0}), cluster(4))
    for forecaster in (oracle, Noisy(oracle, spread=0.5)):
        assert Forecasts(forecaster, cluster(4)).speedup(one, "v100", 4, 1).median == 2.0
    assert Noisy(NoForecasts(), spread=0.5).speedups([SpeedupRequest(one, "v100", 4, 1, 1)]) == [
        None
    ]


def test_the_fewest_nodes_hold_a_gang():
    assert [fewest_nodes(gpus, 4) for gpus in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
