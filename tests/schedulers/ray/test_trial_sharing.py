"""How many trials share a device: worked examples, laws, and forecasts that cannot be used."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError, ServiceError
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.ray.trial_sharing import DEFAULT_LIMITS, share_device
from tests.schedulers.clusters import GIB
from tests.schedulers.ray.trials import TRIAL
from tests.support.slow_tests import examples

KIND, MEMORY = "a100-80gb", 80 * GIB


class Foreseen:
    """Forecaster of one trial, with the slowdown of each number of copies.

    A slowdown of None, or of a number that is missing, is no forecast.
    """

    def __init__(self, prediction, slowdowns=None):
        self.prediction, self.by_count = prediction, slowdowns or {}

    def predictions(self, requests):
        if isinstance(self.prediction, Exception):
            raise self.prediction
        return [self.prediction for _ in requests]

    def slowdowns(self, requests):
        found = [self.by_count.get(len(jobs)) for _, jobs in requests]
        return [
            None if one is None else (one,) * len(jobs)
            for one, (_, jobs) in zip(found, requests, strict=True)
        ]


def predicted(gib=10.0, milli=200, **more):
    return RuntimePrediction(100.0, milli, round(gib * GIB), **more)


def shared(prediction, slowdowns, memory_bytes=MEMORY, limits=DEFAULT_LIMITS):
    return share_device(TRIAL, KIND, memory_bytes, Foreseen(prediction, slowdowns), limits)


FAST = {2: 1.1, 3: 1.2, 4: 1.4, 5: 1.45}


@pytest.mark.parametrize(
    ("prediction", "slowdowns", "trials", "reason"),
    [
        (predicted(), FAST, 4, "the limit is 4 trials on a device"),
        (predicted(gib=30), FAST, 2, "3 may need 90.00 GiB, and the device has 80.00 GiB"),
        (predicted(gib=41), FAST, 1, "2 may need 82.00 GiB, and the device has 80.00 GiB"),
        (predicted(milli=300), FAST, 3, "4 are predicted to use 120% of the device"),
        (predicted(), {2: 1.1, 3: 1.51}, 2, "3 are predicted to be 1.51 times as slow"),
        (predicted(), {2: 1.6}, 1, "2 are predicted to be 1.60 times as slow, the limit is 1.5"),
        (predicted(), {2: 1.1}, 2, "no forecast of the slowdown of 3"),
        (predicted(), {}, 1, "no forecast of the slowdown of 2"),
        (predicted(), {2: math.nan}, 1, "no forecast of the slowdown of 2"),
    ],
)
def test_the_limit_that_is_reached_first_decides(prediction, slowdowns, trials, reason):
    found = shared(prediction, slowdowns)

    assert found.trials == trials
    assert reason in found.reason
    assert found.memory_bytes == prediction.memory_bytes
    assert found.slowdown == (slowdowns[trials] if trials > 1 else 1.0)


@pytest.mark.parametrize(
    ("prediction", "reason"),
    [
        (None, "no forecast"),
        (predicted(in_domain=False, release_id="0ab"), "outside the training data of release 0ab"),
        (predicted(gib=80.5), "it may need 80.50 GiB, and the device has 80.00 GiB"),
        (predicted()._replace(memory_bytes=math.nan), "no forecast"),
        (predicted()._replace(compute_milli=math.nan), "no forecast"),
        (predicted()._replace(memory_bytes=math.inf), "no forecast"),
        (predicted()._replace(memory_bytes=-1), "no forecast"),
        (ServiceError("no prediction service at head:1"), "no prediction service at head:1"),
        (ValueError("cannot convert float NaN to integer"), "no forecast"),
    ],
)
def test_without_a_usable_forecast_a_trial_has_a_device_of_its_own(prediction, reason):
    found = shared(prediction, FAST)

    assert (found.trials, found.memory_bytes, found.slowdown) == (1, None, 1.0)
    assert reason in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(2.0, 2, 1.0), r"most_slowdown=2, must be below 2"),
        (Limits(0.5, 2, 1.0), r"most_slowdown=0.5, must be a finite number >= 1"),
        (Limits(1.5, 0, 1.0), r"most_members=0"),
        (Limits(1.5, 2, math.nan), r"overcommit=nan"),
    ],
)
def test_limits_that_make_no_sense_are_rejected(limits, message):
    with pytest.raises(ConfigError, match=message):
        shared(predicted(), FAST, limits=limits)


slowdowns_by_count = st.dictionaries(
    st.integers(2, 6), st.none() | st.floats(0.5, 3.0) | st.just(math.nan), max_size=5
)
predictions = st.builds(
    predicted, st.floats(0.01, 100.0), st.integers(0, 1000), in_domain=st.booleans()
)
limit_values = st.builds(
    Limits, st.floats(1.0, 1.99), st.integers(1, 6), st.floats(1.0, 2.0)
)  # fmt: skip


@settings(max_examples=examples(200))
@given(predictions, slowdowns_by_count, limit_values)
def test_trials_fit_in_memory_and_are_faster_at_once_than_in_a_row(prediction, slowdowns, limits):
    found = shared(prediction, slowdowns, limits=limits)

    assert 1 <= found.trials <= limits.most_members
    assert found.reason
    if found.memory_bytes is None:
        assert found.trials == 1
        return
    assert found.trials * found.memory_bytes <= MEMORY
    assert found.slowdown <= limits.most_slowdown
    if found.trials > 1:
        assert found.trials / found.slowdown > 1
        # Different trials, each with its part of a device, fit whatever they are mixed with.
        assert found.memory_bytes <= MEMORY / found.trials


@settings(max_examples=examples(100))
@given(predictions, slowdowns_by_count, st.integers(1, 80))
def test_more_memory_never_means_fewer_trials(prediction, slowdowns, gib):
    less = shared(prediction, slowdowns, memory_bytes=gib * GIB)
    more = shared(prediction, slowdowns, memory_bytes=(gib + 1) * GIB)

    assert more.trials >= less.trials
