"""AllReduces that the switch cannot compute, and calls that differ over the ranks."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import ReduceOp

from presage.collectives.torch.eligibility import is_eligible
from presage.collectives.torch.settings import Settings
from presage.errors import ConfigError

SIZE = 50_000


@pytest.mark.parametrize("ranks", [2, 3])
def test_i4_what_the_switch_cannot_compute_runs_by_gloo(
    start_switch, start_arbiter, start_job, ranks
):
    switch, arbiter = start_switch(), start_arbiter(ranks)
    arbiter.use_switch(switch)
    arbiter.allow()
    job = start_job("others", ranks, arbiter, {"size": SIZE, "use_switch": True})

    for result in job.results():
        assert [name for name, is_right in result["found"].items() if not is_right] == []
        assert result["numbered"] == 9  # the asynchronous ones at the end


def test_a_job_of_one_rank_reduces_nothing(start_job):
    result = start_job("alone", 1).results()[0]

    assert result["is_unchanged"]


@pytest.mark.parametrize("is_on_switch", [False, True])
def test_unequal_sizes_are_an_error_that_names_ranks_and_sizes(
    start_switch, start_arbiter, start_job, is_on_switch
):
    arbiter = None
    if is_on_switch:
        switch, arbiter = start_switch(), start_arbiter(3)
        arbiter.use_switch(switch)
        arbiter.allow()
    sizes = [SIZE, SIZE + 10_000, SIZE]
    options = {"size": SIZE, "sizes": sizes, "use_switch": is_on_switch, "known": is_on_switch}

    for result in start_job("unequal", 3, arbiter, options).results():
        for rank, size in enumerate(sizes):
            assert f"rank {rank}: {4 * size} bytes" in result["error"]


def test_a_new_size_of_one_rank_only_is_an_error_that_names_it(start_job):
    options = {"size": SIZE, "sizes": [SIZE, SIZE + 1], "first": SIZE, "timeout_s": 12}

    job = start_job("unequal", 2, None, options)

    result = job.results(ranks=[1])[0]
    assert f"rank 0: {4 * SIZE} bytes, rank 1: {4 * SIZE + 4} bytes" in result["error"]
    assert job.processes[0].wait(30) != 0 or job.results(ranks=[0])[0]["error"]


@pytest.mark.parametrize(
    ("tensor", "operation"),
    [
        (torch.ones(100, dtype=torch.int32), ReduceOp.SUM),
        (torch.ones(100, dtype=torch.bfloat16), ReduceOp.SUM),
        (torch.ones(100, dtype=torch.float64), ReduceOp.SUM),
        (torch.ones(100), ReduceOp.MAX),
        (torch.ones(100), ReduceOp.PRODUCT),
        (torch.ones(0), ReduceOp.SUM),
        (torch.ones(9), ReduceOp.SUM),
        (torch.ones(1001), ReduceOp.SUM),
        (torch.ones(10, 10).t()[:5], ReduceOp.SUM),
        (torch.ones(100, device="meta"), ReduceOp.SUM),
        (torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (100,)), ReduceOp.SUM),
    ],
)
def test_only_dense_sums_of_float32_of_some_size_are_eligible(tensor, operation):
    assert not is_eligible(tensor, operation, min_bytes=40, max_bytes=4000)


@pytest.mark.parametrize("operation", [ReduceOp.SUM, ReduceOp.AVG])
def test_sums_and_averages_of_float32_are_eligible(operation):
    assert is_eligible(torch.ones(10), operation, min_bytes=40, max_bytes=4000)
    assert is_eligible(torch.ones(10, 100), operation, min_bytes=40, max_bytes=4000)


@pytest.mark.parametrize(
    "environment",
    [
        {"PRESAGE_INC_AGREEMENT": "vote"},
        {"PRESAGE_INC_MIN_BYTES": "many"},
        {"PRESAGE_INC_MIN_BYTES": "-1"},
        {"PRESAGE_INC_MIN_BYTES": "9", "PRESAGE_INC_MAX_BYTES": "8"},
        {"PRESAGE_INC_CA": "/no/such.pem"},
        {"PRESAGE_INC_CERT": "pyproject.toml"},
    ],
)
def test_invalid_settings_are_rejected_by_name(environment):
    with pytest.raises(ConfigError, match="PRESAGE_INC_"):
        Settings.from_environment(environment)


def test_names_of_jobs_become_names_that_a_switch_accepts():
    def name(text):
        return Settings.from_environment({"PRESAGE_INC_JOB": text}).job

    assert name("ResNet 50/ä") == "ResNet-50/-"
    assert len(name("x" * 100)) == 64
    assert name("") != name("")
