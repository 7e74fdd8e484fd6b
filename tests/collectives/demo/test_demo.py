"""``presage inc demo``: real DDP jobs that share a switch in an emulated network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from unittest.mock import create_autospec

import pytest

from presage.collectives.demo import demo
from presage.collectives.demo import inc_domain as inc_domain_module
from presage.collectives.demo.contending_jobs import run_jobs
from presage.collectives.demo.demo import DemoOptions, DemoResult, DemoRow
from presage.collectives.demo.inc_domain import inc_domain
from presage.collectives.demo.training_job import TrainingJob, make_model
from presage.collectives.star_network import (
    NetworkUnavailableError,
    StarNetwork,
    check_network,
    star_network,
)
from presage.collectives.switch.process import SwitchProcess
from presage.errors import ConfigError, ServiceError
from tests.cli.test_terminal import run
from tests.support.slow_tests import all_faults

DEMO = (sys.executable, "-m", "presage", "inc", "demo")


@pytest.fixture
def network():
    try:
        with star_network(hosts=4, mbit_per_s=100) as made:
            yield made
    except NetworkUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": 0}, "0 jobs of 3 ranks"),
        ({"ranks": 1}, "2 jobs of 1 ranks"),
        ({"jobs": 40}, "at most 64 ranks together"),
        ({"mbit_per_s": float("nan")}, "--mbit nan, must be a finite number above 0"),
        ({"gradient_mib": 0.0}, "--gradient-mib 0"),
        ({"seconds": float("inf")}, "--seconds inf"),
    ],
)
def test_options_out_of_range_are_rejected(changes, message):
    with pytest.raises(ConfigError, match=message):
        DemoOptions(**changes)


@pytest.mark.parametrize("gradient_bytes", [1, 1000, 1 << 20])
def test_the_model_has_at_least_the_requested_gradients(gradient_bytes):
    size = sum(4 * one.numel() for one in make_model(gradient_bytes).parameters())
    assert gradient_bytes <= size <= 1.1 * gradient_bytes + 100


def test_without_root_the_demo_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(monkeypatch, "inc", "demo", "--out", str(tmp_path / "t.html")) == 1
    said = capsys.readouterr()
    assert "an emulated network needs root (run it with sudo)" in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_picture_that_could_not_be_drawn_is_an_error(tmp_path, monkeypatch, capsys, words):
    rows = [DemoRow("job-1", 2, 0.25, 0.5, 0.4, 1.25, 0.6, is_equal=True)]
    found = DemoResult(rows, "no arbiter at 10.0.0.1:7300")
    monkeypatch.setattr(demo, "run_demo", lambda *_: found)

    assert run(monkeypatch, "inc", "demo", "--out", str(tmp_path / "t.html"), *words) == 1

    said = capsys.readouterr()
    assert "job-1" in said.out  # the measurement is not lost
    assert "time line: " not in said.out
    assert "the time line could not be drawn: no arbiter at 10.0.0.1:7300" in said.err


def test_a_command_in_the_network_that_fails_says_why(tmp_path):
    network, switch = create_autospec(StarNetwork), create_autospec(SwitchProcess)
    network.hub_prefix.return_value = ["sh", "-c", "echo 'error: no space left' >&2; exit 3"]
    domain = inc_domain_module.IncDomain(network, "h:1", "t", switch, tmp_path)
    with pytest.raises(ServiceError, match=r"^no space left$"):
        domain.request("timeline")
    assert domain.ask("timeline") is None


@all_faults
def test_the_demo_trains_on_the_switch_and_draws_it(tmp_path):
    try:
        check_network()
    except NetworkUnavailableError as error:
        pytest.skip(str(error))
    picture = tmp_path / "timeline.svg"
    done = subprocess.run(
        [*DEMO, "--ranks", "2", "--seconds", "6s", "--out", picture, "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    assert [row["job"] for row in rows] == ["job-1", "job-2"]
    assert all(row["is_equal"] for row in rows)
    assert sum(row["inc_share"] for row in rows) > 0.2
    assert "on the switch" in picture.read_text()
    assert "no AllReduce was reported" not in picture.read_text()


@all_faults
def test_i4_jobs_continue_without_the_arbiter_and_use_the_switch_when_it_is_back(network, tmp_path):
    jobs = [TrainingJob("a", 2, 1 << 20, 0.05), TrainingJob("b", 2, 1 << 20, 0.08)]
    returned_s = []
    with inc_domain(network, tmp_path) as domain:

        def kill_and_restart():
            time.sleep(4)
            domain.kill_arbiter()
            time.sleep(1)
            domain.start_arbiter()
            returned_s.append(time.monotonic())

        results = run_jobs(
            network, jobs, 12, arbiter=domain.arbiter, token=domain.token,
            after_begin=kill_and_restart, logs=tmp_path,
        )  # fmt: skip
    for result in results:
        assert result.is_equal
        ends_s = [one.end_s for one in result.iterations]
        assert max(b - a for a, b in pairwise(ends_s)) < 3
    later = [one for r in results for one in r.iterations if one.end_s > returned_s[0]]
    assert any(one.is_on_switch for one in later)


@all_faults
def test_a_rank_that_is_killed_ends_its_job_with_an_error_and_no_other(network, tmp_path):
    jobs = [TrainingJob("a", 2, 1 << 20, 0.05), TrainingJob("b", 2, 1 << 20, 0.05)]
    words = ["pgrep", "-f", 'training_job.*"name": "a"']
    with inc_domain(network, tmp_path) as domain:

        def kill_one():
            time.sleep(3)
            pids = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            os.kill(int(pids[-1]), signal.SIGKILL)

        with pytest.raises(Exception, match="a rank ended early"):
            run_jobs(
                network, jobs, 8, arbiter=domain.arbiter, token=domain.token,
                after_begin=kill_one, logs=tmp_path,
            )  # fmt: skip
        log = "".join((tmp_path / f"a.{rank}.log").read_text() for rank in range(2))
    assert "closed its connection" in log or "Connection closed by peer" in log
