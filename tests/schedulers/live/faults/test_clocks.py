"""Tests of wall clocks that jump by hours, for controller, agents, shims and jobs."""

from __future__ import annotations

import shutil
import time

import pytest

from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.faults.shifted_clock import ShiftedClock, shift_library
from tests.support.slow_tests import all_faults

HOUR_S = 3600


@all_faults
def test_clock_jumps_of_hours_end_no_jobs_and_delay_none(cluster):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    clock = ShiftedClock(cluster.folder / "clock", shift_library(cluster.folder))
    cluster.environment = clock.environment
    cluster.lease_s = 4.0
    cluster.up("n0")
    cluster.submit(cluster.job("long", 200, 0.05, 10), cluster.job("waits", 5))
    cluster.runs("long")

    for hours in (5, -20, 100):
        clock.shift(hours * HOUR_S)
        time.sleep(2)
        if hours < 0:
            cluster.kill("controller")
            cluster.controller()
            cluster.connected("n0")
        found = cluster.all()
        assert found.nodes[0].last_report_age_s < HOUR_S / 2
        assert cluster.status("waits").waited_s < HOUR_S / 2
        assert 0 <= cluster.status("long").elapsed_s < HOUR_S / 2

    assert cluster.over("long", "waits") == {"long": pb.FINISHED, "waits": pb.FINISHED}
    assert cluster.status("long").ended_unix_s > time.time() + 50 * HOUR_S  # it did jump
    cluster.check(run_once=["long", "waits"])
