"""Jobs under ``torchrun`` with the real arbiter, its controlled switch and predicted phases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from presage.collectives.arbiter.client import ArbiterClient
from presage.collectives.core.messages import Member
from presage.collectives.core.view import Reason
from presage.collectives.torch.arbiter_link import open_arbiter_link
from presage.collectives.torch.settings import Settings
from tests.collectives.arbiter.support.processes import ArbiterProcess
from tests.collectives.torch.job import ROOT, WORKER
from tests.serving.support.certificates import make_authority, make_certificate
from tests.support.waiting import wait_until


@pytest.fixture
def arbiter(start_switch, ending, tmp_path):
    switch = start_switch(controlled=True)
    started = ArbiterProcess(switch, tmp_path / "arbiter.db")
    ending.append(started)
    return started


def test_i2_a_job_under_torchrun_is_predicted_and_gets_the_switch(arbiter):
    options = json.dumps({"size": 50_000, "steps": 300, "use_switch": True, "pause_s": 0.01})
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
        str(WORKER), "timed", options,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "PRESAGE_INC_ARBITER": arbiter.target,
        "PRESAGE_INC_JOB": "trained",
    }

    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results = [line for line in lines if "end" in line]
    assert len(results) == 2
    assert results[0]["digest"] == results[1]["digest"]
    assert results[0]["summed"] == results[1]["summed"] > 100
    assert results[0]["failed"] == 0


def test_i6_an_arbiter_that_is_killed_stops_no_job(arbiter, start_job):
    options = {"size": 50_000, "steps": 500, "use_switch": True, "pause_s": 0.01}
    environment = {"PRESAGE_INC_ARBITER": arbiter.target}
    job = start_job("timed", 2, None, options, environment)
    job.wait_for(0, lambda line: line.get("step", -1) >= 50)

    arbiter.process.send_signal(signal.SIGKILL)
    begin_s = time.monotonic()
    results = job.results()

    assert time.monotonic() - begin_s < 60
    assert results[0]["digest"] == results[1]["digest"]
    assert results[0]["numbered"] == 500
    assert results[0]["longest_s"] < 3


def test_a_rank_connects_by_tls_with_a_certificate_from_its_environment(
    start_switch, ending, tmp_path
):
    authority = make_authority(tmp_path, "authority")
    server, server_key = make_certificate(tmp_path, "server", authority)
    client, client_key = make_certificate(tmp_path, "client", authority)
    tokens = tmp_path / "tokens"
    made = subprocess.run(
        [sys.executable, "-m", "presage", "token", "rank", "--role", "submit", "--file", tokens],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    arbiter = ArbiterProcess(
        start_switch(controlled=True), tmp_path / "tls.db",
        "--tls-cert", str(server), "--tls-key", str(server_key),
        "--client-ca", str(authority[0]), "--tokens", str(tokens),
    )  # fmt: skip
    ending.append(arbiter)
    settings = Settings.from_environment(
        {
            "PRESAGE_INC_ARBITER": arbiter.target,
            "PRESAGE_INC_TOKEN": made.stdout.split()[-1],
            "PRESAGE_INC_CA": str(authority[0]),
            "PRESAGE_INC_CERT": str(client),
            "PRESAGE_INC_KEY": str(client_key),
        }
    )

    link = open_arbiter_link(settings, Member("tls", 0, 2))
    ending.append(link)

    connection: Any = link.connection
    wait_until(lambda: connection.is_connected)


FORECAST = {
    "PRESAGE_INC_STEP_TIME_S": "0.5",
    "PRESAGE_INC_STEP_TIME_INTERVAL_S": "0.4,0.6",
    "PRESAGE_INC_GRADIENT_BYTES": str(4 << 20),
}


@pytest.mark.parametrize("way", ["environment", "script", "none"])
def test_i2_the_first_iterations_use_the_forecast_of_the_step_time(arbiter, start_job, way):
    options: dict[str, Any] = {"size": 1 << 20, "steps": 14, "pause_s": 0.4}
    environment = {"PRESAGE_INC_ARBITER": arbiter.target}
    if way == "environment":
        environment |= FORECAST
    elif way == "script":
        options["forecast"] = [0.5, 4 << 20, [0.4, 0.6]]
    job = start_job("timed", 2, None, options, environment)

    def windows():
        found = [one for one in arbiter.status().jobs if one.window]
        # A first report may come before the first AllReduce has started.
        return [one for one in found if way == "none" or one.state == "arbitrated"]

    (first,) = wait_until(windows, 60)
    results = job.results()
    with ArbiterClient(arbiter.target) as client:
        rows = [row.decision for row in client.timeline().rows]
    reasons = {Reason(row.reason) for row in rows}

    assert results[0]["digest"] == results[1]["digest"]
    if way == "none":
        assert (first.period_s, Reason.RESERVED in reasons) == (0.0, True)
        assert "arrivals count as soon" in first.state
        return
    assert first.period_s == 0.5  # nothing else was learnt yet
    assert Reason.NO_OTHER_ARRIVAL in reasons
    assert results[0]["summed"] > 5
