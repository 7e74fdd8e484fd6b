"""Workers on a GPU; skipped without one. Several workers share it if there is only one."""

from __future__ import annotations

import pytest
import torch

from presage.training.memory_share import MemoryShare
from tests.training.support.job import running
from tests.training.support.laws import (
    check_equals_uninterrupted,
    check_exactly_once,
    sizes,
    uninterrupted,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MIB = 1 << 20


def grow_and_die(job, **options):
    """2 workers, 3 from step 6 on; the first one is killed in step 14."""
    options = {"device": "cuda", "gates": {"5": "grow", "14": "kill"}} | options
    job.start("a", "b", **options)
    job.wait_at("grow")
    job.resize(3)
    job.start("c", **options)
    job.wait_ready(1)
    job.open("grow")
    job.wait_at("kill")
    job.kill("a")
    job.open("kill")
    results = job.finish()
    assert sizes(job) == [2, 3, 2]
    return results


@needs_gpu
def test_s7_workers_on_a_gpu_join_and_s8_die(tmp_path):
    with running(tmp_path, workers=2) as job:
        results = grow_and_die(job)

        assert results["b"]["parameters"] == results["c"]["parameters"]
        check_exactly_once(job)
        check_equals_uninterrupted(job, device="cuda")


@needs_gpu
def test_a_deterministic_job_on_a_gpu_is_bitwise_equal_to_an_uninterrupted_one(tmp_path):
    options = {"device": "cuda", "deterministic": True, "dropout": 0.3, "no_norm": False}
    expected, _ = uninterrupted(**options)
    with running(tmp_path, workers=2) as job:
        results = grow_and_die(job, **options)

        assert results["b"] == results["c"] == expected


@needs_gpu
def test_s3_a_worker_cannot_allocate_more_than_its_share_of_a_gpu():
    share = MemoryShare()
    share.follow(256 * MIB)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
        share.follow(1024 * MIB)
        assert torch.empty(512 * MIB, dtype=torch.uint8, device="cuda").is_cuda
    finally:
        share.follow(0)
