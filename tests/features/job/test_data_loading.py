"""Law of data stalls: worked examples, laws, and a real DataLoader."""

import itertools
import math
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from presage.errors import InvalidJobError
from presage.features.forecast import Forecast
from presage.features.job.data_loading import (
    HAND_OVER_BYTES_PER_S,
    HAND_OVER_S,
    HOST_CORES,
    MAX_SAMPLE_S,
    MAX_WORKERS,
    STEP,
    TRAINING_PROCESS,
    WORKERS,
    DataLoading,
    forecast_loading,
    processor_hand_over_s,
)
from tests.support.slow_tests import examples

HAND_OVER = 0.002
SLOW = DataLoading(sample_s=0.01, workers=0, batch_size=32, hand_over_s=HAND_OVER)  # 0.32 s


def at(loading, **changes):
    return replace(loading, **changes)


def test_the_training_process_loads_between_two_steps():
    assert SLOW.loaded_step_s(0.1) == pytest.approx(0.42)
    assert SLOW.stall_s(0.1) == pytest.approx(0.32)
    assert SLOW.bottleneck(0.1) == TRAINING_PROCESS


def test_workers_load_while_the_step_runs_and_the_slower_sets_the_pace():
    two, four = at(SLOW, workers=2), at(SLOW, workers=4)

    assert two.loaded_step_s(0.1) == pytest.approx((0.32 + HAND_OVER) / 2)
    assert two.bottleneck(0.1) == WORKERS
    assert four.loaded_step_s(0.1) == pytest.approx(0.1 + HAND_OVER)
    assert four.bottleneck(0.1) == STEP


def test_cores_that_the_step_leaves_limit_samples_that_compute():
    busy = at(SLOW, workers=8, host_cores=2)

    assert busy.loaded_step_s(0.1) == pytest.approx((0.1 + 0.32 + 2 * HAND_OVER) / 2)
    assert busy.bottleneck(0.1) == HOST_CORES
    assert busy.sufficient_workers(0.1) is None
    assert at(busy, sample_cpu_s=0.0).bottleneck(0.1) == STEP


def test_a_step_on_all_cores_of_a_processor_hides_no_computing_of_samples():
    full = at(SLOW, workers=2, host_cores=4, step_cores=4.0)

    assert full.loaded_step_s(0.1) == pytest.approx(0.1 + 0.32 / 4 + HAND_OVER / 2)


def test_handing_over_a_large_batch_takes_time():
    large_s = processor_hand_over_s(round(2 * HAND_OVER_BYTES_PER_S))

    assert large_s == pytest.approx(HAND_OVER_S + 2)
    ready = at(SLOW, sample_s=0.0, workers=1)
    assert at(ready, hand_over_s=large_s).stall_s(5.0) == pytest.approx(large_s)
    assert at(ready, hand_over_s=0.0).stall_s(5.0) == 0


@pytest.mark.parametrize(("step_s", "workers"), [(10.0, 0), (0.4, 1), (0.2, 2), (0.1, 4)])
def test_as_many_workers_suffice_as_hide_the_loading(step_s, workers):
    assert SLOW.sufficient_workers(step_s) == workers


def test_no_number_of_workers_suffices_if_a_sample_takes_a_day():
    assert at(SLOW, sample_s=MAX_SAMPLE_S).sufficient_workers(1e-3) is None


def forecast(low, median, high):
    return Forecast(
        low=low, median=median, high=high, unit="seconds", in_domain=False, release_id="a",
        quantiles=((0.95, 2 * high),),
    )  # fmt: skip


def test_an_interval_is_mapped_through_the_law():
    found = forecast_loading(
        at(SLOW, workers=2), forecast(0.05, 0.1, 0.2), forecast(7, 13, 25), iterations=100
    )

    least = (0.32 + HAND_OVER) / 2
    step, runtime = found.step_time_s, found.runtime_s
    assert (step.low, step.median, step.high) == pytest.approx((least, least, 0.2 + HAND_OVER))
    expected = (7 + 100 * (least - 0.05), 13 + 100 * (least - 0.1))
    assert (runtime.low, runtime.median) == pytest.approx(expected)
    assert runtime.high == pytest.approx(25 + 100 * HAND_OVER)
    assert not step.in_domain
    assert step.quantiles == ()
    assert found.ordered(lambda step_s: -step_s) == (-0.1, -0.2, -0.05)


seconds = st.floats(0, 1e3)
steps = st.floats(1e-6, 1e4)
cores = st.one_of(st.just(math.inf), st.integers(1, 256).map(float))
loadings = st.builds(
    DataLoading,
    sample_s=seconds,
    workers=st.integers(0, 64),
    batch_size=st.integers(1, 4096),
    hand_over_s=st.floats(0, 10),
    sample_cpu_s=st.none(),
    host_cores=cores,
)


@settings(max_examples=examples(200))
@given(loading=loadings, step_s=steps, more=st.floats(1, 100))
def test_longer_samples_and_steps_never_make_a_step_shorter(loading, step_s, more):
    slower = at(loading, sample_s=min(loading.sample_s * more, MAX_SAMPLE_S))

    assert loading.loaded_step_s(step_s) <= slower.loaded_step_s(step_s)
    assert loading.loaded_step_s(step_s) <= loading.loaded_step_s(step_s * more)


@settings(max_examples=examples(200))
@given(loading=loadings, step_s=steps, more=st.floats(1, 100))
def test_a_stall_is_a_share_of_the_step_and_does_not_grow_with_it(loading, step_s, more):
    assert loading.stall_s(step_s) >= 0
    assert 0 <= loading.stall_share(step_s) <= 1
    slack = 1e-9 * loading.loaded_step_s(step_s * more)
    assert loading.stall_s(step_s * more) <= loading.stall_s(step_s) + slack


@settings(max_examples=examples(200))
@given(loading=loadings, step_s=steps, workers=st.integers(1, 63))
def test_another_worker_never_makes_a_step_longer(loading, step_s, workers):
    fewer, more = (at(loading, workers=n).loaded_step_s(step_s) for n in (workers, workers + 1))

    assert more <= fewer


@settings(max_examples=examples(200))
@given(loading=loadings, step_s=steps)
def test_a_step_lasts_between_its_slowest_part_and_the_sum_of_all(loading, step_s):
    load_s = loading.batch_size * loading.sample_s
    found = loading.loaded_step_s(step_s)

    assert found >= max(step_s, load_s / max(1, loading.workers))
    assert found <= (step_s + load_s + 2 * loading.hand_over_s) * (1 + 1e-9)


@settings(max_examples=examples(200))
@given(step_s=steps, batch_size=st.integers(1, 4096))
def test_samples_in_memory_change_nothing(step_s, batch_size):
    none = DataLoading(sample_s=0.0, workers=0, batch_size=batch_size)

    assert none.loaded_step_s(step_s) == step_s
    assert none.sufficient_workers(step_s) == 0


@settings(max_examples=examples(200))
@given(loading=loadings, step_s=steps, share=st.floats(0.001, 0.5))
def test_the_sufficient_workers_are_the_fewest(loading, step_s, share):
    found = loading.sufficient_workers(step_s, share)

    fewer = MAX_WORKERS if found is None else found - 1
    if found is not None:
        assert at(loading, workers=found).stall_share(step_s) <= share
    if fewer >= 0:
        slack = 1e-9  # the least number may be met exactly
        assert at(loading, workers=fewer).stall_share(step_s) > share - slack


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sample_s": -1.0}, "a sample takes -1.0 s, must be"),
        ({"sample_s": math.nan}, "a sample takes nan s"),
        ({"sample_s": math.inf}, "a sample takes inf s"),
        ({"sample_s": 2 * MAX_SAMPLE_S}, "between 0 and 86,400"),
        ({"sample_cpu_s": 0.02}, "occupies a core for 0.02 s, must be between 0 and the 0.01 s"),
        ({"sample_cpu_s": math.nan}, "occupies a core for nan s"),
        ({"workers": -1}, "-1 workers, must be between 0 and 4,096"),
        ({"workers": MAX_WORKERS + 1}, "4097 workers"),
        ({"hand_over_s": -1.0}, "handing a batch over takes -1.0 s"),
        ({"hand_over_s": math.inf}, "handing a batch over takes inf s"),
        ({"batch_size": 0}, "batch of 0 samples"),
        ({"host_cores": 0.5}, "the step occupies 1.0 of 0.5 host cores"),
        ({"host_cores": math.nan}, "of nan host cores"),
        ({"step_cores": -1.0}, "the step occupies -1.0"),
    ],
)
def test_an_impossible_loader_is_rejected(changes, words):
    with pytest.raises(InvalidJobError, match=words):
        at(SLOW, **changes)


class Sleeping(Dataset):
    """Samples that take ``sample_s`` each, as from a slow storage."""

    def __init__(self, sample_s):
        self.sample_s = sample_s

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.zeros(4)


@pytest.mark.parametrize(("workers", "expected"), [(0, 0.8), (1, 0.75), (2, 0.5)])
def test_stalls_of_a_real_data_loader_are_predicted(workers, expected):
    step_s, sample_s, batch_size, count = 0.02, 0.01, 8, 6
    loading = DataLoading(
        sample_s=sample_s, sample_cpu_s=0.0, workers=workers, batch_size=batch_size
    )
    loader = iter(DataLoader(Sleeping(sample_s), batch_size=batch_size, num_workers=workers))
    for _ in range(2 * workers + 1):  # batches that were loaded ahead
        next(loader)

    def measured():
        start = time.perf_counter()
        for _ in itertools.islice(loader, count):
            time.sleep(step_s)
        return 1 - count * step_s / (time.perf_counter() - start)

    assert loading.stall_share(step_s) == pytest.approx(expected, abs=0.03)
    # Other programs delay workers: one of several windows is as predicted.
    assert any(measured() == pytest.approx(expected, abs=0.15) for _ in range(5))
