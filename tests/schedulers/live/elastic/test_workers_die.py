"""Tests of killed and stopped workers: the others continue, and the job grows again later."""

from __future__ import annotations

import signal
import time

import pytest

from tests.schedulers.live.cluster import until
from tests.support.slow_tests import all_faults

SILENCE_S = 10.0  # after which a leader removes a worker


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=all_faults)])
def test_other_workers_continue_when_workers_are_killed(elastic, count):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 20, (1, count + 2, count + 2)))
    nodes = elastic.trains("wide", count + 2)
    elastic.advances("wide")
    victims = [next(name for name in nodes if nodes[name] == node) for node in ("n0", "n1")][:count]
    pids = elastic.workers("wide")

    for name in victims:
        elastic.signal(pids[name], signal.SIGKILL)

    left = elastic.trains("wide", 2)
    assert left.keys() == nodes.keys() - victims
    elastic.advances("wide")
    assert "worker" in elastic.client.explain("wide").status.sizes[-1].reason
    assert elastic.workers("wide") == {name: pids[name] for name in left}
    lost = elastic.ends("wide")
    assert lost <= 1  # only those that were killed had it
    assert elastic.status("wide").attempt == 1


@all_faults
def test_a_job_grows_again_some_time_after_a_worker_was_killed(elastic):
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 30, (1, 2, 2)))
    elastic.trains("wide", 2)
    elastic.advances("wide")
    began_s = time.monotonic()

    elastic.signal(elastic.workers("wide")["m2"], signal.SIGKILL)

    elastic.trains("wide", 1)
    assert elastic.trains("wide", 2).keys() == {"m1", "m3"}
    assert time.monotonic() - began_s > 9
    assert elastic.ends("wide") <= 1


@all_faults
def test_a_job_whose_workers_are_all_killed_fails_or_starts_again(elastic):
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 20, (1, 2, 2), checkpoint_s=0.5, retries=1))
    elastic.trains("wide", 2)
    until(lambda: elastic.status("wide").done > 0)
    until(lambda: list(elastic.folder.glob("checkpoints/*/elastic.ckpt")))
    elastic.advances("wide", 20)

    for pid in elastic.workers("wide").values():
        elastic.signal(pid, signal.SIGKILL)

    elastic.trains("wide", 2, attempt=2)
    elastic.advances("wide")
    elastic.ends("wide")
    # It continued from its checkpoint.
    assert min(row.step for row in elastic.rows("wide") if row.attempt == 2) > 0


@all_faults
def test_a_stopped_worker_is_removed_and_joins_again(elastic):
    elastic.up("n0", "n1")
    elastic.submit(elastic.elastic("wide", 30, (1, 3, 3)))
    elastic.trains("wide", 3)
    elastic.advances("wide")
    pids = elastic.workers("wide")

    elastic.signal(pids["m3"], signal.SIGSTOP)
    before = elastic.advances("wide", 0)
    until(lambda: elastic.leader_status("wide").get("size") == 2, what="it is removed")
    elastic.advances("wide", 3)
    elastic.signal(pids["m3"], signal.SIGCONT)

    elastic.trains("wide", 3)
    assert elastic.workers("wide") == pids
    assert before < elastic.advances("wide")
    assert elastic.ends("wide") == 0
    assert elastic.sizes("wide") == [3, 0]
