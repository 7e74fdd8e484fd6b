"""``presage inc forecast``: a served forecast as settings of the torch backend."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from presage.collectives.phases.prior import Prior
from tests.serving.support.processes import serving
from tests.support import in_process

RELEASE = "data/pretrained/release"
COMMAND = [sys.executable, "-m", "presage", "inc", "forecast"]
JOB = ["--job", "examples.my_model:classifier", "--device", "a100"]


def run(*words):
    return in_process.presage("inc", "forecast", *JOB, *words)


def run_process(*words):
    return subprocess.run([*COMMAND, *JOB, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("size", ["2", "4x2"])
def test_the_variables_are_a_forecast(size):
    found = json.loads(run("--gpus", size, "--json").stdout)
    low, high = map(float, found["PRESAGE_INC_STEP_TIME_INTERVAL_S"].split(","))
    size_bytes = int(found["PRESAGE_INC_GRADIENT_BYTES"])

    assert Prior(float(found["PRESAGE_INC_STEP_TIME_S"]), size_bytes, (low, high)).can_predict
    assert size_bytes == 2_483_240


def test_a_running_server_gives_the_forecast_of_its_release():
    own = run("--gpus", "4x2", "--json", "--release", RELEASE)
    with serving("--release", RELEASE) as server:
        served = run_process("--gpus", "4x2", "--json", "--server", server.target)

    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout) == json.loads(own.stdout)


def test_a_server_that_does_not_run_is_reported():
    done = run("--gpus", "2", "--server", "127.0.0.1:1")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and "127.0.0.1:1" in done.stderr


def test_a_job_of_one_rank_is_rejected():
    done = run("--gpus", "1")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: --gpus 1: a job of one rank uses no switch")
