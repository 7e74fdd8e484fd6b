"""Tests of `presage cluster up`: restarts and killed processes while a job runs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from presage.schedulers.live.agent.tasks.processes import pids
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import PRESAGE, until
from tests.support.slow_tests import all_faults


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=all_faults)])
def test_a_job_continues_while_its_cluster_is_restarted(cluster, number):
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


def up_with(cluster, *options):
    """Start `cluster up` with this cluster's port and folder."""
    state = ("--port", cluster.port, "--state", cluster.folder / "up", "--lease-s", 30)
    cluster.start("up", (*PRESAGE, "up", *state, *options))


def processes(cluster, command):
    """Return the processes of a command that belong to this cluster."""
    found = []
    for pid in pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            ours = any(os.fsencode(cluster.folder) in word for word in words)
            if ours and words[3:5] == [b"cluster", command.encode()]:
                found.append(pid)
    return found


def another(cluster, command, pid):
    """Return the processes of a command except one."""
    return set(processes(cluster, command)) - {pid}


@pytest.mark.timeout(200)
def test_a_killed_controller_and_agent_are_restarted_and_a_job_continues(cluster):
    up_with(cluster)
    cluster.connected("n0")
    cluster.submit(cluster.job("long", 400, 0.05))
    pid = cluster.runs("long").pid

    for command in ("agent", "controller"):
        (before,) = processes(cluster, command)
        cluster.signal(before, signal.SIGKILL)
        started = partial(another, cluster, command, before)
        until(started, what=f"another {command}")
        cluster.connected("n0")
        assert cluster.running["up"].poll() is None
    cluster.submit(cluster.job("next", 5))

    assert cluster.over("long", "next") == {"long": pb.FINISHED, "next": pb.FINISHED}
    assert {line.pid for line in cluster.lines() if line.job == "long"} == {pid}
    said = cluster.log("up").read_text()
    assert "n0 was ended by SIGKILL; restarting in 1 s\n" in said
    assert "controller was ended by SIGKILL; restarting in 1 s\n" in said
    cluster.check(run_once=["long", "next"])
    assert cluster.kill("up", signal.SIGTERM) == 0


@pytest.mark.timeout(200)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a processor for each of two agents")
@pytest.mark.parametrize("damage", ["locked", "corrupt"])
def test_an_agent_that_cannot_start_joins_later_while_the_other_runs_jobs(cluster, damage):
    state = cluster.folder / "up" / "n1"
    state.mkdir(parents=True)
    if damage == "locked":
        lock = os.open(state / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        why = f"state folder {state}: another agent uses it; give each agent its own folder"
    else:
        (state / "agent.id").write_bytes(b"\xff")
        why = f"{state}/agent.id: damaged, must contain 32 hexadecimal digits"
    up_with(cluster, "--agents", 2)
    cluster.connected("n0")
    said = cluster.log("up")
    until(lambda: said.read_text().count(f"n1 ended with 1: error: {why}") >= 2, 120.0, "n1 fails")
    assert "2 failures in a row" in said.read_text()

    cluster.submit(cluster.job("job", 5))
    assert cluster.over("job") == {"job": pb.FINISHED}
    if damage == "locked":
        os.close(lock)
        cluster.connected("n0", "n1")
    # Else n1 waits to be started again meanwhile.
    assert cluster.kill("up", signal.SIGINT) == 0
    assert not [*processes(cluster, "agent"), *processes(cluster, "controller")]
    assert "Traceback" not in said.read_text()
