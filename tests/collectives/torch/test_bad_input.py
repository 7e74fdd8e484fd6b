"""AllReduces that the switch cannot compute, and calls that differ over the ranks."""

from __future__ import annotations

import json
from unittest.mock import create_autospec

import pytest
import torch
from torch.distributed import ReduceOp

from presage.collectives.phases.estimator import PhaseEstimator
from presage.collectives.phases.prior import Prior
from presage.collectives.torch.arbiter_link import ArbiterLink
from presage.collectives.torch.eligibility import is_eligible
from presage.collectives.torch.forecast import gradient_bytes, set_forecast
from presage.collectives.torch.interfaces import ReportingConnection
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


STEP, BYTES, INTERVAL = (
    f"PRESAGE_INC_{name}" for name in ("STEP_TIME_S", "GRADIENT_BYTES", "STEP_TIME_INTERVAL_S")
)
FORECAST = {STEP: "0.31", BYTES: "102400", INTERVAL: "0.28,0.35"}


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        *((STEP, text, "must be a finite number of seconds above 0; give")
          for text in ("0", "-1", "nan", "inf", "-inf", "1e400")),
        (STEP, "310ms", "is no number of seconds, such as 0.31"),
        *((BYTES, text, "must be at least 1; give the bytes") for text in ("0", "-5")),
        *((BYTES, text, "is no number of bytes") for text in ("1e6", "nan")),
        *((INTERVAL, text, "must be finite, above 0 and contain the step time 0.31; give LOW,HIGH")
          for text in ("0,0.4", "-1,0.4", "nan,0.4", "0.3,inf", "0.32,0.4", "0.2,0.3", "0.4,0.3")),
        *((INTERVAL, text, "is no interval; give LOW,HIGH in seconds, such as 0.28,0.35")
          for text in ("0.3", "0.2,0.3,0.4", "a,b", ",")),
    ],
)  # fmt: skip
def test_an_impossible_forecast_is_rejected_in_one_line_by_its_variable(name, text, fix):
    with pytest.raises(ConfigError) as raised:
        Settings.from_environment({**FORECAST, name: text})

    message = str(raised.value)
    assert message.startswith(f"{name}=")
    assert fix in message
    assert "\n" not in message


@pytest.mark.parametrize("only", [STEP, BYTES, INTERVAL])
def test_half_of_a_forecast_is_rejected(only):
    with pytest.raises(ConfigError, match=f"{STEP} and {BYTES}; set both, or unset"):
        Settings.from_environment({only: FORECAST[only]})


def test_a_forecast_of_rank_0_is_that_of_all_ranks():
    given = Settings.from_environment(FORECAST)
    shared = json.loads(json.dumps(given.shared()))
    other = Settings.from_environment({}).with_shared(shared)

    assert Settings.from_environment({}).prior() is None
    assert given.prior() == other.prior() == Prior(0.31, 102400, (0.28, 0.35))


@pytest.mark.parametrize("step_time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_forecast_of_a_script_is_rejected(step_time_s):
    with pytest.raises(ValueError, match=r"^step_time_s=.*; give the predicted step time"):
        set_forecast(step_time_s, 1 << 20)


def test_gradients_of_a_model_are_those_of_its_trained_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Linear(20, 1, bias=False))
    model[1].requires_grad_(requires_grad=False)

    assert gradient_bytes(model) == 4 * (10 * 20 + 20)
    with pytest.raises(ValueError, match=r"^gradient_bytes=0"):
        set_forecast(0.3, torch.nn.ReLU())


def test_a_forecast_that_is_too_wide_is_a_warning(caplog):
    link = ArbiterLink(create_autospec(ReportingConnection), PhaseEstimator(), None)

    link.set_prior(Prior(0.3, 1024, (0.1, 0.5)))
    assert "the forecast of the step time, 0.3 s, is not used" in caplog.text
    caplog.clear()
    link.set_prior(Prior(0.3, 1024, (0.25, 0.35)))
    assert not caplog.text


def test_names_of_jobs_become_names_that_a_switch_accepts():
    def name(text):
        return Settings.from_environment({"PRESAGE_INC_JOB": text}).job

    assert name("ResNet 50/ä") == "ResNet-50/-"
    assert len(name("x" * 100)) == 64
    assert name("") != name("")
