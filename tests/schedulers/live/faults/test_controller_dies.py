"""Tests that a controller killed at any record loses nothing and starts nothing twice."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

from tests.schedulers.live.cluster import PRESAGE
from tests.schedulers.live.scenario import check, play, restarted
from tests.support.slow_tests import all_faults

DYING = (sys.executable, Path(__file__).with_name("dying_controller.py"))
# "1-40": by hand, a run for each of these records, at which it dies once.
ASKED = os.environ.get("PRESAGE_TEST_DIES_AT", "")
FIRST, _, LAST = (ASKED or "1-1").partition("-")


@pytest.mark.parametrize(
    ("when", "each"),
    [
        ("either", 7),
        pytest.param("before", 1, marks=all_faults),
        pytest.param("after", 1, marks=all_faults),
    ],
)
def test_a_controller_killed_repeatedly_loses_nothing(cluster, when, each):
    always = (*DYING, when, -each, cluster.folder / "died")
    for node in ("n0", "n1"):
        cluster.agent(node)
    with restarted(cluster, itertools.repeat(always)) as ends:
        play(cluster)
        check(cluster)
    assert len(ends) > 20 // each
    assert set(ends) == {-9}


@pytest.mark.skipif(not ASKED, reason="half a minute a record; PRESAGE_TEST_DIES_AT=1-40")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(int(FIRST), int(LAST) + 1))
def test_a_controller_killed_at_a_record_loses_nothing(cluster, when, number):
    once = (*DYING, when, number, cluster.folder / "died")
    after = (*PRESAGE, "controller")
    for node in ("n0", "n1"):
        cluster.agent(node)
    with restarted(cluster, itertools.chain([once], itertools.repeat(after))) as ends:
        play(cluster)
        check(cluster)
    assert ends in ([], [-9])  # that run may have had fewer records
