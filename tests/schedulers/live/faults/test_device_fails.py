"""Tests of single devices that fail: recorded Xid lines in the kernel log of a real agent."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from presage.features.hazard.hazard_file import pretrained_hazard_file, read_hazard_model
from presage.features.hazard.hazard_model import DAY_S
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.live.controller.journal.records import record_from_json
from presage.schedulers.live.controller.replayed_state import ReplayedState
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account
from tests.schedulers.live.cluster import ENVIRONMENT, PRESAGE, until

BUSES = ("0000:3b:00", "0000:5e:00")
XID_79 = (
    "[61.1] NVRM: GPU at PCI:{0}: GPU-00000000-1111-2222-3333-444444444444\n"
    "[61.1] NVRM: Xid (PCI:{0}): 79, pid=12, name=python, GPU has fallen off the bus.\n"
)
FALLEN = "it failed: Xid 79: the GPU has fallen off the bus"
# The first attempt fails as a process does whose GPU falls off the bus: after the driver's line.
DYING_JOB = """
import os, sys
if os.environ["PRESAGE_TASK"].endswith(".1"):
    with open(sys.argv[1], "a") as log:
        log.write(sys.argv[2])
    sys.exit(1)
"""


@pytest.fixture
def kernel_log(cluster):
    """Kernel log of the node "n0", which has two processors in place of GPUs."""
    log = cluster.folder / "kern.log"
    log.touch()
    cluster.controller("--policy", "least-failing")
    cpu = min(os.sched_getaffinity(0))
    addresses = [word for bus in BUSES for word in ("--pci-address", bus)]
    cluster.agent("n0", "--device", f"cpu-1={cpu}", "--kernel-log", log, *addresses)
    cluster.connected("n0")
    return log


def append(log, text):
    with log.open("a") as file:
        file.write(text)


def withdrawn(cluster):
    """Return why devices get no jobs, by node and number."""
    nodes = until(cluster.all).nodes
    return {
        f"{node.name}/{number}": device.reason
        for node in nodes
        for number, device in enumerate(node.devices)
        if device.reason
    }


def presage(cluster, *words):
    """Run a command of the cluster; return its output."""
    command = [*PRESAGE, *words, "--controller", cluster.target]
    environment = {**os.environ, **ENVIRONMENT, "COLUMNS": "200"}
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=60
    ).stdout


def hazards(cluster, *devices):
    """Return the hazards of devices by the journal; the controller must not run."""
    state = ReplayedState()
    for row in cluster.records():
        state.apply(record_from_json(row))
    forecaster = OutageHazards(read_hazard_model(pretrained_hazard_file()))
    now: Any = SimpleNamespace(
        outages=state.outages.history(), device_ids=devices, now_s=state.now_s
    )
    return forecaster.hazards(now, DAY_S, interval=False).probability.tolist()


def test_a_failed_device_is_withdrawn_and_its_job_continues_elsewhere(cluster, kernel_log):
    cluster.submit(cluster.job("hit", 400, 0.05, 5), cluster.job("other", 100_000, 0.05))
    cluster.runs("hit")
    other = cluster.runs("other")
    cluster.agent("n1")
    cluster.connected("n0", "n1")
    status = cluster.status("hit")
    number = status.allocations[0].device
    device = f"{status.node}/{number}"
    assert status.node == "n0"

    append(kernel_log, "noise\nNVRM: Xid (PCI:zz): 79,\n" + XID_79.format("0000:ff:00"))
    append(kernel_log, XID_79.format(BUSES[number]))
    assert until(lambda: withdrawn(cluster)) == {device: FALLEN}
    cluster.runs("hit", attempt=2)
    assert cluster.status("hit").node == "n1"
    assert "0000:ff:00" in cluster.log("n0").read_text()
    details = [event.details for event in cluster.client.explain("hit").history]
    assert f"device {device} is withdrawn: {FALLEN}" in details
    assert FALLEN in presage(cluster, "ps", "--nodes")

    cluster.kill("controller")
    cluster.controller("--policy", "least-failing")
    cluster.connected("n0", "n1")
    assert withdrawn(cluster) == {device: FALLEN}
    cluster.submit(cluster.job("waiting", 5))
    assert "withdrawn: " + device in cluster.client.explain("waiting").summary
    cluster.kill("n0")  # the next agent finds the old line in the log, and does not report it
    cpu = min(os.sched_getaffinity(0))
    addresses = [word for bus in BUSES for word in ("--pci-address", bus)]
    cluster.agent("n0", "--device", f"cpu-1={cpu}", "--kernel-log", kernel_log, *addresses)
    cluster.connected("n0", "n1")

    presage(cluster, "drain", device, "--undo")
    assert withdrawn(cluster) == {}
    assert cluster.over("waiting")["waiting"] == pb.FINISHED
    assert cluster.status("waiting").node == "n0"
    assert cluster.status("other").attempt == 1
    assert cluster.runs("other", beyond=other.number).pid == other.pid
    cluster.cancel("other")
    assert cluster.over("hit", "other") == {
        "hit": pb.FINISHED, "other": pb.CANCELLED, "waiting": pb.FINISHED,
    }  # fmt: skip
    cluster.check()
    cluster.kill("controller")
    failed, healthy = hazards(cluster, device, f"n0/{1 - number}")
    assert failed > healthy


def test_a_job_that_fails_with_its_device_runs_again(cluster, kernel_log):
    text = XID_79.format(BUSES[0]) + XID_79.format(BUSES[1])
    job = pb.Job(
        job_id="hit", command=[sys.executable, "-c", DYING_JOB, str(kernel_log), text], grace_s=1
    )
    cluster.agent("n1")
    cluster.connected("n0", "n1")
    presage(cluster, "drain", "n1/0")  # so that it starts on the other node
    cluster.submit(job)
    until(lambda: len(withdrawn(cluster)) == 3)
    presage(cluster, "drain", "n1/0", "--undo")

    assert cluster.over("hit") == {"hit": pb.FINISHED}
    status = cluster.status("hit")
    assert (status.node, status.attempt) == ("n1", 2)


def test_an_operator_withdraws_a_device_and_returns_it(cluster, kernel_log):
    cluster.submit(cluster.job("a", 200, 0.05, 5))
    cluster.runs("a")
    number = cluster.status("a").allocations[0].device

    assert presage(cluster, "drain", f"n0/{number}").split() == ["a"]
    assert withdrawn(cluster) == {f"n0/{number}": f"it is drained by {account()}"}
    cluster.runs("a", attempt=2)
    assert cluster.status("a").allocations[0].device == 1 - number
    presage(cluster, "drain", f"n0/{number}", "--undo")
    assert withdrawn(cluster) == {}
    assert cluster.over("a") == {"a": pb.FINISHED}
    assert cluster.status("a").attempt == 2
    cluster.check()
