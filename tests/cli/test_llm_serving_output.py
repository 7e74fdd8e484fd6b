"""Lines and JSON entries of jobs that serve LLMs."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from presage.cli.options.job_source import read_job
from presage.cli.output.derived.llm_serving import serving_figures, serving_lines
from presage.features.device.device import catalogue
from presage.features.forecast import Forecast

CPU = catalogue()["cpu-2"]
JOB = read_job("llm_decode/w256-d4-k8-c64/b2/inference")
STEP = Forecast(
    median=0.02, low=0.01, high=0.04, coverage=0.8, unit="seconds", in_domain=True, release_id="a"
)


def test_the_cache_is_shown_with_its_factors():
    first, second = serving_lines(JOB, CPU)

    assert first == (
        "KV cache 1 MiB: 2 x 4 layers x 8 heads x 32 elements x 64 tokens x 2 sequences x 4 bytes"
    )
    assert second.startswith("at most ")
    assert second.endswith(" sequences of 64 tokens fit on cpu-2 with the weights")


def test_tokens_per_second_follow_from_the_step_time():
    assert serving_lines(JOB, CPU, STEP)[-1] == "100 tokens/s (50 to 200)"
    assert serving_figures(JOB, STEP) == {
        "kv_cache_bytes": 2 * 4 * 8 * 32 * 64 * 2 * 4,
        "tokens_per_s": {"median": 100, "low": 50, "high": 200},
    }


def test_a_batch_that_does_not_fit_is_said_to():
    small = replace(CPU, memory_bytes=CPU.context_bytes + JOB.memory.parameter_bytes + 2**20 - 1)

    assert serving_lines(JOB, small)[-1] == (
        "at most 1 sequence of 64 tokens fit on cpu-2 with the weights; this batch does not fit"
    )


@pytest.mark.parametrize("job_id", ["mine", "llm_decode", "llm_decode/9b-c1/b1/inference"])
def test_other_jobs_have_no_such_lines(job_id):
    other = replace(JOB, job=replace(JOB.job, job_id=job_id))

    assert serving_lines(other, CPU, STEP) == []
    assert serving_figures(other, STEP) == {}


def test_a_client_without_torch_shows_the_rest(monkeypatch):
    module = "presage.pipelines.profiling.zoo.language.llm_serving"
    monkeypatch.setitem(sys.modules, module, None)

    assert serving_lines(JOB, CPU, STEP) == []
