"""Traces without ranges become traces of elastic jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.errors import ConfigError
from presage.schedulers.simulator.scenario import Scenario
from presage.schedulers.simulator.simulate import simulate
from presage.schedulers.traces.elastic import parse_range, with_elastic_jobs
from presage.schedulers.traces.formats import read_trace
from presage.schedulers.traces.generator import generate_trace
from presage.schedulers.traces.trace import Trace
from tests.schedulers.clusters import cluster, job

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_jobs_get_a_range_around_their_request():
    jobs = (job("a", gpus=6), job("b"), job("own", gpus=4, min_gpus=3))
    found = with_elastic_jobs(Trace(jobs, {}), *parse_range("0.25,1.5")).jobs

    assert [(one.min_gpus, one.max_gpus) for one in found] == [(2, 9), (1, 1), (3, 0)]
    assert [one.is_elastic for one in found] == [True, False, True]


@pytest.mark.parametrize("text", ["2", "a,b", "0,2", "0.5,0.9", "2,4", "0.5,inf", "nan,2", "1,2,3"])
def test_an_invalid_range_is_rejected(text):
    with pytest.raises(ConfigError, match="elastic "):
        Scenario(Path(), Path(), elastic=text)


def test_generated_traces_keep_the_ranges_of_their_jobs():
    like = read_trace(EXAMPLES / "elastic_trace.csv")
    found = generate_trace(like, 50, seed=1)

    assert {(one.gpus, one.min_gpus, one.max_gpus) for one in found.jobs} <= {
        (one.gpus, one.min_gpus, one.max_gpus) for one in like.jobs
    }
    assert all(one.is_elastic for one in found.jobs)


def test_elasticity_shortens_the_jobs_of_an_example():
    def jct_s(policy: str) -> float:
        files = EXAMPLES / "trace.csv", EXAMPLES / "cluster.yaml"
        found = simulate(*files, policy, elastic="0.5,2").metrics.average_jct_s
        assert found is not None
        return found

    assert jct_s("elastic") < jct_s("srtf")


def test_a_log_of_resized_jobs_is_a_trace_again(tmp_path):
    jobs = (job("a", gpus=2, max_gpus=4),)
    done = simulate(Trace(jobs, {"a": 500.0}), cluster(4), "elastic:hold_s=100")
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{line}\n" for line in done.log()))
    found = read_trace(log)

    assert found.jobs == jobs
    assert found.duration_s["a"] == pytest.approx(500.0, abs=0.5)
