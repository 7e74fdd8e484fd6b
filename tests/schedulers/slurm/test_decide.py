from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.forecast import Forecast
from presage.schedulers.slurm.bridge.decide import DecisionOptions, decide
from presage.schedulers.slurm.bridge.submission import Submission
from presage.schedulers.slurm.job_note import JobNote
from presage.serving.predictor.prediction_backend import JobForecast
from tests.features import examples

DEVICE = examples.device(kind="a100-80gb", memory_bytes=80 * 2**30)
OPTIONS = DecisionOptions(lead_minutes=10, shards_per_gpu=10)
GPU = "gres:gpu:a100:1"
DIGEST = "d" * 64


def forecast(median: float, high: float, unit: str = "seconds", *, in_domain: bool = True):
    return Forecast(median, median, high, unit, in_domain, "release")


def forecasts(
    runtime_s: float = 3000.0,
    memory_gib: float = 20.0,
    used: float = 0.2,
    *,
    in_domain: bool = True,
) -> JobForecast:
    return JobForecast(
        forecast(used / 2, used, "fraction", in_domain=in_domain),
        forecast(memory_gib * 2**29, memory_gib * 2**30, "bytes", in_domain=in_domain),
        forecast(0.1, 0.2, in_domain=in_domain),
        forecast(runtime_s / 2, runtime_s, in_domain=in_domain),
    )


def submission(**changes) -> Submission:
    return replace(Submission(own_minutes=600, gpus=GPU), **changes)


def decided(job: Submission, of: JobForecast, options: DecisionOptions = OPTIONS):
    return decide(job, of, DEVICE, DIGEST, options)


def test_the_limit_is_the_quantile_of_the_run_time_in_whole_minutes():
    changes = decided(submission(), forecasts(3001))

    assert changes.time_limit_minutes == 51
    note = JobNote.parse(changes.note)
    assert note is not None
    assert (note.own_minutes, note.set_minutes, note.predicted_s) == (600, 51, 3001)
    assert (note.release_id, note.device, note.features) == ("release", "a100-80gb", DIGEST)


def test_a_limit_is_at_least_the_lead_and_never_raised():
    assert decided(submission(), forecasts(5)).time_limit_minutes == 10
    assert decided(submission(own_minutes=51), forecasts(3001)).time_limit_minutes is None
    assert decided(submission(own_minutes=9), forecasts(5)).time_limit_minutes is None
    assert decided(submission(own_minutes=None), forecasts(3001)).time_limit_minutes == 51


@pytest.mark.parametrize(
    "changes",
    [
        {"options": frozenset({"pin-time"})},
        {"has_time_min": True},
        {"has_own_limit": False, "own_minutes": None},
    ],
)
def test_a_pinned_limit_is_unchanged(changes):
    assert decided(submission(**changes), forecasts()).time_limit_minutes is None


def test_host_memory_is_set_for_a_job_without_gpu_only():
    assert decided(submission(gpus=""), forecasts(memory_gib=2)).memory_mib == 2048
    assert decided(submission(), forecasts(memory_gib=2)).memory_mib is None
    assert decided(submission(gpus="", has_memory=True), forecasts()).memory_mib is None
    pinned = submission(gpus="", options=frozenset({"pin-memory"}))
    assert decided(pinned, forecasts()).memory_mib is None


def test_a_gpu_is_shared_only_on_request_by_the_larger_of_memory_and_use():
    shared = submission(options=frozenset({"share"}))

    assert decided(submission(), forecasts()).shards is None
    assert decided(shared, forecasts(memory_gib=20, used=0.2)).shards == 3
    assert decided(shared, forecasts(memory_gib=20, used=0.55)).shards == 6
    assert decided(shared, forecasts(memory_gib=79)).shards is None
    assert decided(replace(shared, gpus="gres:gpu:2"), forecasts()).shards is None
    assert decided(replace(shared, gpus="gres:gpu:1,gres:fpga:1"), forecasts()).shards is None
    assert decided(shared, forecasts(), replace(OPTIONS, shards_per_gpu=0)).shards is None


def test_short_jobs_get_less_nice():
    options = replace(OPTIONS, nice_per_doubling=10)

    assert decided(submission(), forecasts(2 * 60), options).nice == 0
    assert decided(submission(), forecasts(2 * 240), options).nice == 20
    assert decided(submission(has_nice=True), forecasts(), options).nice is None
    assert decided(submission(), forecasts()).nice is None


def test_out_of_domain_changes_nothing_but_the_note():
    job = submission(gpus="", options=frozenset({"share"}))

    changes = decided(job, forecasts(in_domain=False), replace(OPTIONS, nice_per_doubling=5))

    assert replace(changes, note="") == replace(changes, note="", time_limit_minutes=None)
    assert (changes.time_limit_minutes, changes.memory_mib, changes.shards, changes.nice) == (
        None, None, None, None,
    )  # fmt: skip
    note = JobNote.parse(changes.note)
    assert note is not None
    assert note.set_minutes is None
    assert note.predicted_s is None


@given(
    st.floats(min_value=0, allow_nan=False),
    st.floats(min_value=0, allow_nan=False),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_no_forecast_raises_a_limit_or_makes_an_invalid_request(runtime_s, memory, own_minutes):
    changes = decided(submission(gpus="", own_minutes=own_minutes), forecasts(runtime_s, memory))

    minutes = changes.time_limit_minutes
    assert minutes is None or minutes >= 10
    assert minutes is None or own_minutes is None or minutes < own_minutes
    assert changes.memory_mib is None or changes.memory_mib >= 1
    assert JobNote.parse(changes.note) is not None
    assert math.isinf(runtime_s) is False or minutes is None
