"""Jobs under ``torchrun`` with the real arbiter, its controlled switch and predicted phases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.collectives.arbiter.support.processes import ArbiterProcess
from tests.collectives.torch.job import ROOT, WORKER


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
