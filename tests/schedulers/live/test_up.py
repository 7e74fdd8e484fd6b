"""All of a cluster on one machine: ended, killed, and started again, while a job runs on."""

from __future__ import annotations

import signal
import subprocess

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import PRESAGE, all_faults


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=all_faults)])
def test_a_job_runs_on_while_its_cluster_is_ended_and_started_again(cluster, number):
    command = (
        *PRESAGE, "up", "--port", cluster.port, "--state", cluster.folder / "up", "--lease-s", 30,
    )  # fmt: skip
    cluster.start("up", command)
    cluster.connected("n0")
    cluster.submit(cluster.job("long", 120, 0.05), cluster.job("next", 5))
    pid = cluster.runs("long").pid

    cluster.kill("up", number)
    assert "Traceback" not in cluster.log("up").read_text()
    beyond = max(line.number for line in cluster.lines() if line.what == "did")
    cluster.runs("long", beyond=beyond)
    cluster.start("up", command)

    assert cluster.over("long", "next") == {"long": pb.FINISHED, "next": pb.FINISHED}
    assert {line.pid for line in cluster.lines() if line.job == "long"} == {pid}
    another = subprocess.run(
        [*map(str, command), "--state", str(cluster.folder / "another")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert another.returncode == 1
    assert "error: port" in another.stderr
    assert another.stderr.count("\n") == 1
    cluster.check(run_once=["long", "next"])
    cluster.kill("up", signal.SIGTERM)
