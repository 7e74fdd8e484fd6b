"""Worker on a simulated GPU, and the environment of the child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import pytest
import torch

from presage.pipelines.profiling.running.worker import (
    choose_cuda_kernels,
    failure_kind,
    limit_memory,
    step_through,
)
from presage.pipelines.profiling.sampling.cuda_clock import AHEAD, step_through_on_gpu, tied_event
from presage.system.processes.child_process import Child, child_environment

STEP_S = 0.01


class FakeGpu:
    """GPU that runs kernels in order, with a clock of another origin."""

    def __init__(self) -> None:
        self.idle_from_s = 0.0
        self.began_s = time.monotonic() - 1000
        self.ended_s: list[float] = []
        self.most_ahead = 0

    def launch(self, work_s: float = STEP_S) -> None:
        now_s = time.monotonic()
        self.idle_from_s = max(now_s, self.idle_from_s) + work_s
        self.ended_s.append(self.idle_from_s)
        self.most_ahead = max(self.most_ahead, sum(end_s > now_s for end_s in self.ended_s))

    def event(self) -> FakeEvent:
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at_s: float | None = None

    def record(self) -> None:
        self.at_s = max(time.monotonic(), self._gpu.idle_from_s)

    def synchronize(self) -> None:
        assert self.at_s is not None, "not recorded"
        time.sleep(max(0.0, self.at_s - time.monotonic()))

    def elapsed_time(self, end_event: Any) -> float:
        assert self.at_s is not None
        assert end_event.at_s <= time.monotonic(), "CUDA raises while the event is not over"
        elapsed_ms: float = 1e3 * (end_event.at_s - self.at_s)
        return elapsed_ms


# --- the clock of a GPU -------------------------------------------------------------------------


def test_steps_on_a_gpu_last_as_long_as_their_work_and_run_in_order():
    gpu = FakeGpu()
    start_s = time.monotonic() + 0.02
    steps, cpu_s = step_through_on_gpu(gpu.launch, start_s, start_s + 0.2, gpu.event)

    assert start_s <= steps[0][0] < start_s + 0.05
    assert steps[-1][0] < start_s + 0.2 <= steps[-1][1] + 1e-3
    assert all(one[1] == next_one[0] for one, next_one in pairwise(steps))
    times_s = sorted(end_s - begin_s for begin_s, end_s in steps)
    assert times_s[0] >= 0.9 * STEP_S
    assert times_s[len(times_s) // 2] == pytest.approx(STEP_S, rel=0.3)
    assert cpu_s < 0.15  # waiting for the GPU is not work


def test_step_times_are_of_the_shared_monotonic_clock():
    gpu = FakeGpu()
    now_s = time.monotonic()
    steps, _ = step_through_on_gpu(gpu.launch, now_s, now_s + 0.1, gpu.event)

    for (_, end_s), ended_s in zip(steps, gpu.ended_s, strict=False):
        assert end_s == pytest.approx(ended_s, abs=2e-3)


def test_the_processor_runs_a_few_steps_ahead_of_the_gpu():
    gpu = FakeGpu()
    now_s = time.monotonic()
    steps, _ = step_through_on_gpu(gpu.launch, now_s, now_s + 0.2, gpu.event)

    assert 2 <= gpu.most_ahead <= AHEAD + 1
    assert len(gpu.ended_s) <= len(steps) + AHEAD + 1


def test_a_job_bound_by_the_processor_is_timed_by_the_processor():
    gpu = FakeGpu()

    def run() -> None:
        time.sleep(STEP_S)
        gpu.launch(1e-4)

    now_s = time.monotonic()
    steps, _ = step_through_on_gpu(run, now_s, now_s + 0.1, gpu.event)
    times_s = sorted(end_s - begin_s for begin_s, end_s in steps)

    assert STEP_S <= times_s[len(times_s) // 2] < 3 * STEP_S


def test_there_is_at_least_one_step():
    gpu = FakeGpu()

    assert len(step_through_on_gpu(gpu.launch, 0.0, 0.0, gpu.event)[0]) == 1


def test_clocks_are_aligned_by_the_quickest_of_several_tries():
    gpu = FakeGpu()
    gpu.launch(0.05)  # another job's: the first event is late
    event, at_s = tied_event(gpu.event)

    assert isinstance(event, FakeEvent)
    assert at_s == pytest.approx(event.at_s, abs=2e-3)


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "short", "failure"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 0, "out-of-memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), 0, "out-of-memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), 0, "out-of-memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), 0, "out-of-memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error"), 1, "out-of-memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error"), 0, "crash"),
        (RuntimeError("GET was unable to find an engine to execute"), 1, "out-of-memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when"), 1, "out-of-memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), 1, "crash"),
        (RuntimeError("CUDA error: unspecified launch failure"), 1, "crash"),
        (RuntimeError("CUDA error: device-side assert triggered"), 0, "crash"),
    ],
)
def test_a_gpu_out_of_memory_is_distinguished_from_a_broken_one(error, short, failure):
    assert failure_kind(error, memory_is_short=bool(short)) == failure


# --- settings of torch ---------------------------------------------------------------------------


@pytest.fixture
def kernels():
    """Restore the settings of torch afterwards."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield
    cuda.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("bf16", False), ("tf32", True)])
def test_tf32_is_used_only_on_request(kernels, precision, tf32):
    choose_cuda_kernels(precision)

    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.cudnn.benchmark is False


def test_a_memory_limit_on_a_gpu_does_not_limit_the_process(monkeypatch):
    asked: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60, 80))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", asked.append)
    limit_memory(20, "cuda")
    limit_memory(200, "cuda")

    assert asked == [0.25, 1.0]


SPEC = {"threads": 1, "seed": 0, "memory_limit_bytes": None, "device": "cpu"}


def test_a_worker_that_waited_for_its_job_does_not_count_the_wait_as_setup():
    def setup_s(wait_s: float) -> float:
        with Child("presage.pipelines.profiling.running.worker", SPEC, threads=1) as child:
            time.sleep(wait_s)
            job = {"job": "mlp/w128-d2/b8/sgd", "environment": {}, "begun_s": time.monotonic()}
            child.send(job)
            seconds: float = child.read(until_s=time.monotonic() + 120)["setup_s"]
            return seconds

    at_once = setup_s(0.0)
    waited_s = at_once + 10.0

    assert setup_s(waited_s) < at_once + 8.0


def test_a_worker_that_gets_no_job_ends_when_its_parent_closes_the_pipe(tmp_path):
    spec = {**SPEC, "parent_pid": os.getpid(), "spawned_s": time.monotonic()}
    command = [sys.executable, "-m", "presage.pipelines.profiling.running.worker", json.dumps(spec)]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, b"")


def test_a_window_is_answered_with_steps_and_memory_by_device_and_by_allocator():
    with Child("presage.pipelines.profiling.running.worker", SPEC, threads=1) as child:
        child.send({"job": "mlp/w128-d2/b8/sgd", "environment": {}, "begun_s": time.monotonic()})
        ready = child.read(until_s=time.monotonic() + 60)
        child.send({"start_s": 0.0, "deadline_s": 0.0})
        answer = child.read(until_s=time.monotonic() + 60)

    assert (ready["event"], answer["event"]) == ("ready", "window")
    assert len(answer["steps"]) == 1
    assert answer["memory_peak_bytes"] > 100 << 20
    assert answer["memory_allocated_peak_bytes"] is None  # torch has none on a processor
    assert answer["memory_reserved_peak_bytes"] is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_ways_of_stepping_have_the_same_properties(device):
    gpu = FakeGpu()
    start_s = time.monotonic() + 0.02
    if device == "cpu":
        steps, _ = step_through(lambda: time.sleep(STEP_S), start_s, start_s + 0.1)
    else:
        steps, _ = step_through_on_gpu(gpu.launch, start_s, start_s + 0.1, gpu.event)

    assert start_s <= steps[0][0]
    assert all(begin_s < start_s + 0.1 for begin_s, _ in steps)
    assert start_s + 0.1 <= steps[-1][1] + 2e-3


# --- the environment ----------------------------------------------------------------------------


def test_a_child_gets_the_environment_of_its_share(tmp_path, monkeypatch):
    (tmp_path / "tells.py").write_text(
        "import json, os; print(json.dumps({'event': 'told', **os.environ}))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    with Child("tells", {}, threads=3, environment=share) as child:
        told = child.read(until_s=time.monotonic() + 30)

    assert told["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert child_environment(3).items() <= told.items()
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # as NVML counts
