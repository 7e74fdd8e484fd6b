"""Tests of killed controllers and leaders of elastic jobs."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.schedulers.live.cluster import until
from tests.support.slow_tests import all_faults

DYING = (sys.executable, Path(__file__).with_name("dying_controller.py"))


@all_faults
@pytest.mark.parametrize("kind", ["Resized", "Placed"])
def test_a_new_controller_completes_the_change_of_a_killed_one(elastic, kind):
    dying = elastic.controller(by=(*DYING, kind, 1))
    elastic.agent("n0")
    elastic.connected("n0")
    elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
    if kind == "Resized":
        elastic.trains("wide", 2)
        leader = elastic.leader_pid("wide")
        elastic.agent("n1")

    assert dying.wait(60) == -signal.SIGKILL
    if kind == "Resized":
        elastic.advances("wide")
        elastic.controller()
        elastic.trains("wide", 3)
        assert elastic.leader_pid("wide") == leader
    else:
        elastic.controller()
        elastic.trains("wide", 2)

    assert elastic.ends("wide") == 0
    assert elastic.status("wide").attempt == 1


@all_faults
@pytest.mark.parametrize("when", ["resize", "always"])
def test_a_killed_leader_is_started_again_and_workers_reconnect(elastic, when):
    elastic.up("n0")
    elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
    elastic.trains("wide", 2)
    workers = elastic.workers("wide")
    if when == "resize":
        elastic.agent("n1")
        until(lambda: elastic.leader_status("wide").get("desired") == 3)

    leader = elastic.leader_pid("wide")
    elastic.signal(leader, signal.SIGKILL)

    elastic.advances("wide")
    if when == "always":
        until(lambda: elastic.leader_pid("wide") != leader)
        elastic.trains("wide", 2)
        elastic.agent("n1")
    elastic.trains("wide", 3)
    assert elastic.leader_pid("wide") != leader
    assert workers.items() <= elastic.workers("wide").items()
    assert elastic.ends("wide") == 0
    assert elastic.sizes("wide") == [2, 3, 0]


@pytest.mark.parametrize("is_resized", [False, pytest.param(True, marks=all_faults)])
def test_a_controller_on_another_machine_adopts_the_workers(elastic, is_resized):
    elastic.up("n0", *(() if is_resized else ("n1",)))
    elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
    count = 2 if is_resized else 3
    elastic.trains("wide", count)
    elastic.advances("wide")
    workers = elastic.workers("wide")
    if is_resized:
        elastic.agent("n1")
        until(lambda: elastic.leader_status("wide").get("desired") == 3)

    elastic.kill("controller")
    elastic.signal(elastic.leader_pid("wide"), signal.SIGKILL)
    shutil.rmtree(elastic.leaders)
    elastic.controller()

    elastic.trains("wide", 3)
    elastic.advances("wide")
    assert workers.items() <= elastic.workers("wide").items()
    assert elastic.ends("wide") == 0
    assert elastic.status("wide").attempt == 1
