"""Tests of killed agents: jobs continue, are adopted, and never run twice."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import until
from tests.schedulers.live.job import processes_of
from tests.support.slow_tests import all_faults

DYING = (sys.executable, Path(__file__).with_name("dying_agent.py"))
# Moments around the operations of an agent on a task's folder and shim.
MOMENTS = (
    "create",
    "created",
    "launch",
    "launched",
    "set_desired_state",
    "remove",
    "renamed",
    "removed",
)


@all_faults
def test_a_restarted_agent_adopts_its_jobs(cluster):
    cluster.up("n0")
    cluster.submit(cluster.job("long", 100, 0.05))
    first = cluster.runs("long")

    for _ in range(3):
        cluster.kill("n0")
        cluster.agent("n0")
        cluster.connected("n0")

    beyond = max(line.number for line in cluster.lines() if line.what == "did")
    assert cluster.runs("long", beyond=beyond).pid == first.pid
    assert cluster.over("long") == {"long": pb.FINISHED}
    assert cluster.status("long").attempt == 1
    cluster.check(run_once=["long"])


@pytest.mark.parametrize(
    "moment",
    [pytest.param(moment, marks=() if moment == "launch" else all_faults) for moment in MOMENTS],
)
def test_an_agent_killed_while_it_creates_a_task_folder_starts_nothing_twice(cluster, moment):
    cluster.controller()
    process = cluster.agent("n0", by=(*DYING, moment))
    cluster.submit(cluster.job("a", 10, 0.05), cluster.job("b", 10, 0.05))

    assert process.wait(60) == -signal.SIGKILL
    cluster.agent("n0")

    assert cluster.over("a", "b") == {"a": pb.FINISHED, "b": pb.FINISHED}
    cluster.check(run_once=["a", "b"])
    tasks = cluster.folder / "n0" / "tasks"
    until(lambda: all(path.name.startswith(".") for path in tasks.iterdir()))


@pytest.mark.parametrize("seed", [pytest.param(n, marks=all_faults) for n in range(5)])
def test_agents_killed_at_random_lose_nothing(cluster, seed):
    draw = random.Random(seed)
    cluster.up("n0", "n1")
    names = [f"j{i}" for i in range(6)]
    cluster.submit(*(cluster.job(name, 20, 0.05, 5) for name in names))
    until_s = time.monotonic() + 8
    while time.monotonic() < until_s:
        time.sleep(draw.uniform(0.0, 1.2))
        node = draw.choice(["n0", "n1"])
        cluster.kill(node)
        cluster.agent(node)

    assert set(cluster.over(*names).values()) == {pb.FINISHED}
    cluster.check(run_once=names)


@all_faults
def test_jobs_of_an_agent_that_does_not_return_move_to_other_nodes(cluster):
    cluster.lease_s = 3.0
    cluster.up("n0")
    cluster.submit(cluster.job("long", 150, 0.05, 0, grace_s=5.0))
    cluster.runs("long", beyond=10)
    cluster.agent("n1")
    cluster.connected("n0", "n1")

    cluster.kill("n0")

    again = cluster.runs("long", attempt=2)
    assert again.number > 10
    cluster.agent("n0")
    cluster.connected("n0", "n1")
    assert cluster.over("long") == {"long": pb.FINISHED}
    status = cluster.status("long")
    assert (status.attempt, status.node) == (2, "n1")
    cluster.check()


def test_leftovers_of_a_killed_shim_are_removed_before_the_next_attempt(cluster):
    cluster.up("n0")
    cluster.submit(cluster.job("forks", 40, 0.05, 5, "forks"))
    cluster.runs("forks", beyond=5)
    until(lambda: len(processes_of(str(cluster.ledger))) == 2)

    (shim,) = cluster.shims()
    cluster.signal(shim, signal.SIGKILL)

    assert cluster.over("forks") == {"forks": pb.FINISHED}
    assert [line.attempt for line in cluster.starts("forks")] == [1, 2]
    cluster.check()
