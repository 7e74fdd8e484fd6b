"""Pool of workers started ahead, as for a GPU, on this processor."""

from __future__ import annotations

import time

import psutil
import pytest

from presage.features.device.device import Share
from presage.features.device.local_device import detect
from presage.pipelines.profiling.running import worker_pool as module
from presage.pipelines.profiling.running.run_options import RunOptions
from presage.pipelines.profiling.running.worker_pool import SPARES, Workers
from presage.pipelines.profiling.zoo import parse
from presage.system.processes.child_process import Child
from tests.support.waiting import wait_until

JOB = parse("mlp/w128-d2/b8/sgd")


@pytest.fixture
def workers(monkeypatch):
    """Pool with spare workers, although the device is a processor."""
    monkeypatch.setattr(module, "is_gpu", lambda _device: True)
    monkeypatch.setattr(module, "SPARES", 1)
    monkeypatch.setattr(Workers, "_start", _start_on_cpu)
    return Workers(detect(gpu=False), RunOptions(threads=1))


def _start_on_cpu(_self):
    spec = {"threads": 1, "seed": 0, "memory_limit_bytes": None, "device": "cpu"}
    return Child(module.WORKER, spec, threads=1)


def test_the_pool_of_a_processor_has_no_spare_workers():
    with Workers(detect(gpu=False), RunOptions(threads=1)) as kept:
        assert not kept.spares
    assert SPARES >= 4  # as many members as a co-location may have


def test_a_used_spare_is_replaced_and_none_is_left_behind(workers):
    with workers:
        (spare,) = workers.spares
        child = workers.begin(JOB, Share())
        assert child is spare
        (following,) = workers.spares
        assert following.alive
        assert child.read(until_s=time.monotonic() + 120)["event"] == "ready"
        child.kill()

    assert not following.alive
    assert not psutil.pid_exists(child.pid) or not child.alive


def test_a_dead_spare_is_replaced(workers):
    with workers:
        (spare,) = workers.spares
        psutil.Process(spare.pid).kill()
        wait_until(lambda: not spare.alive)  # a moment longer
        child = workers.begin(JOB, Share())
        assert child is not spare
        assert child.read(until_s=time.monotonic() + 120)["event"] == "ready"
        child.kill()
