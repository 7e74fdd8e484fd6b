"""NVML sampler over recorded sessions."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.pipelines.profiling.sampling.device_sample import DeviceSample
from presage.pipelines.profiling.sampling.nvml_readings import later_mean, time_weighted
from presage.pipelines.profiling.sampling.nvml_sampler import NvmlSampler
from tests.pipelines.profiling.gpu_window import (
    FOREIGN,
    GIB,
    MEMBER,
    MEMORY,
    WHERE,
    busy_with,
    failing,
    load,
    processes,
    sample,
)
from tests.pipelines.profiling.recorded_nvml import (
    RECORDINGS,
    RecordedNvml,
    responses,
    utilization_samples,
)

pytestmark = pytest.mark.usefixtures("gpu_machine")

# --- a recorded session -------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_properties_of_every_recorded_session(path):
    recording = json.loads(path.read_text())
    member, before_bytes = recording["member"], recording["memory_before_bytes"]
    sampler = NvmlSampler(RecordedNvml.read(path), memory_before_bytes=before_bytes)
    sampler.start([member])
    time.sleep(recording["window_s"] + 0.1)  # so that its last answers are reached
    seen = sampler.stop()

    assert recording["label"].startswith(("synthetic:", "real:"))
    assert seen.compute_utilization is not None
    assert 0.5 < seen.compute_utilization <= 1  # the job does nothing but multiply matrices
    assert seen.foreign_load is None or 0 <= seen.foreign_load <= 1
    assert seen.power_w is None or 10 < seen.power_w < 2000
    assert seen.sm_clock_mhz is None or 100 < seen.sm_clock_mhz < 5000
    assert seen.memory_bytes.keys() <= {member}
    assert all(size > 100 << 20 for size in seen.memory_bytes.values())  # of a CUDA context
    for share in (seen.sm_activity, seen.sm_occupancy):
        assert share is None or 0 <= share <= 1


def test_a_session_has_utilization_power_clocks_memory_and_multiprocessors():
    path = RECORDINGS / "session.json"
    sampler = NvmlSampler(RecordedNvml.read(path))
    sampler.start([1])
    time.sleep(0.65)
    seen = sampler.stop()

    assert seen.compute_utilization == pytest.approx(0.90, abs=0.1)  # by the samples, not polls
    assert seen.foreign_load == pytest.approx(0.03)
    assert seen.power_w == pytest.approx(410, rel=0.3)  # energy over the time it was played in
    assert seen.sm_clock_mhz == pytest.approx(1972.5, abs=10)
    assert (seen.sm_activity, seen.sm_occupancy) == (0.8825, 0.235)
    assert seen.memory_bytes == {1: 3 * GIB}
    assert seen.throttled is True


def test_a_recording_plays_back_the_same(monkeypatch):
    script = Path(__file__).parents[4] / "benchmarks/profiling/record_nvml.py"
    spec = importlib.util.spec_from_file_location("record_nvml", script)
    assert spec is not None
    assert spec.loader is not None
    record_nvml = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record_nvml)
    monkeypatch.setattr(record_nvml, "pynvml", RecordedNvml.read(RECORDINGS / "session.json"))
    recorder = record_nvml.Recorder()

    def watch(driver, *, window_s: float) -> DeviceSample:
        sampler = NvmlSampler(driver)
        sampler.start([1])
        time.sleep(window_s)
        return sampler.stop()

    first = watch(recorder, window_s=0.62)
    again = watch(RecordedNvml(json.loads(json.dumps(recorder.calls))), window_s=0.7)

    assert again.memory_bytes == first.memory_bytes == {1: 3 * GIB}
    assert again.sm_activity == first.sm_activity == 0.8825
    assert again.compute_utilization == pytest.approx(first.compute_utilization, abs=0.05)
    assert again.power_w == pytest.approx(first.power_w, rel=0.3)


# --- utilization --------------------------------------------------------------------------------


def test_the_drivers_samples_are_weighted_by_their_duration():
    samples = [(100, 0.0), (200, 100.0), (500, 50.0)]

    assert time_weighted(samples, after_us=100, window_us=400) == pytest.approx(62.5)
    assert time_weighted(samples, after_us=100, window_us=200) == pytest.approx(50)
    assert time_weighted(samples, after_us=500, window_us=100) is None  # nothing new
    assert time_weighted(samples[:2], after_us=100, window_us=300) is None  # a third is covered


@given(
    st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 100)), max_size=50),
    st.integers(0, 10**7),
    st.integers(1, 10**7),
)
def test_a_weighted_mean_lies_within_the_samples(samples, after_us, window_us):
    samples.sort()
    mean = time_weighted(samples, after_us=after_us, window_us=window_us)

    if mean is not None:
        values = [value for time_us, value in samples if time_us > after_us]
        assert min(values) - 1e-9 <= mean <= max(values) + 1e-9


def test_without_samples_utilization_is_polled_and_early_polls_are_dropped():
    assert later_mean([(0.0, 0.0), (0.4, 0.2), (0.6, 1.0), (0.9, 0.8)], window_s=1.0) == 0.9
    assert later_mean([(0.0, 0.3)], window_s=1.0) == 0.3
    assert later_mean([], window_s=1.0) is None

    none = responses(DeviceGetSamples=failing(pynvml.NVML_ERROR_NOT_SUPPORTED))
    polled = responses(DeviceGetUtilizationRates={"gpu": 40, "memory": 1})
    assert sample(WHERE + MEMORY + none + polled).compute_utilization == pytest.approx(0.4)


def test_samples_from_before_the_window_do_not_count():
    old = responses(DeviceGetSamples=utilization_samples((10, 90), (20, 90)))
    new = responses(at_s=0.1, DeviceGetSamples=utilization_samples((20, 90), (1_000_020, 30)))

    assert sample(WHERE + MEMORY + old + new).compute_utilization == pytest.approx(0.3)


# --- members and foreign processes ---------------------------------------------------------------


def test_load_of_other_processes_is_foreign_and_memory_is_the_members_peak():
    seen = sample(
        [
            *busy_with(load(MEMBER, 50), load(FOREIGN, 10), load(FOREIGN, 30), member=300),
            *responses(
                at_s=0.3, DeviceGetComputeRunningProcesses=processes(member=200, foreign=900)
            ),
        ],
        window_s=0.4,
    )

    assert seen.foreign_load == pytest.approx(0.2)
    assert seen.memory_bytes == {MEMBER: 300}


def test_without_members_all_load_is_foreign():
    seen = sample(busy_with(load(FOREIGN, 10)), pids=())

    assert seen.foreign_load == seen.compute_utilization == 0.6


def test_invalid_process_samples_are_ignored():
    seen = sample(busy_with(load(MEMBER, 50), load(FOREIGN, 4_000_000), load(0, 90)))

    assert seen.foreign_load == 0


def test_clients_of_mps_are_members_too():
    clients = responses(DeviceGetMPSComputeRunningProcesses=processes(member=500))

    assert sample([*busy_with(), *clients]).memory_bytes == {MEMBER: 500}


def test_with_hidden_process_ids_memory_is_the_increase_and_foreign_load_unknown():
    hidden = [*busy_with(load(FOREIGN, 60), foreign=None)]

    solo = sample(hidden, memory_before_bytes=1 * GIB)
    assert (solo.foreign_load, solo.memory_bytes) == (None, {MEMBER: 2 * GIB})
    assert sample(hidden).memory_bytes == {}  # without a baseline
    two = sample(hidden, pids=(MEMBER, MEMBER + 2), memory_before_bytes=1 * GIB)
    assert two.memory_bytes == {}


def test_an_idle_gpu_has_no_foreign_load_also_with_hidden_process_ids():
    idle = responses(DeviceGetUtilizationRates={"gpu": 0, "memory": 0})

    assert sample([*WHERE, *MEMORY, *idle]).foreign_load == 0
