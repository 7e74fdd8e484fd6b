"""The arbiter is killed at every step: no job stops, no number is split, INC comes back in 2 s."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.collectives.arbiter.support.crashing_arbiter import POINTS
from tests.support.slow_tests import IS_ALL
from tests.support.waiting import wait_until

EVERY = list(itertools.product(POINTS, range(1, 9)))
CRASHES = EVERY if IS_ALL else [(POINTS[0], 1), (POINTS[-1], 2)]
BACK_S = 2.0
MODULE = ("tests.collectives.arbiter.support.crashing_arbiter", "inc", "arbiter")
OPTIONS = ("--horizon", "1", "--lease", "3")


def time_of_first_inc(jobs, since_s):
    times = [row[3] for job in jobs for row in job.rows() if row[1] == "INC" and row[3] >= since_s]
    return min(times, default=None)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("agreement", ["in_band", "two_phase"] if IS_ALL else ["in_band"])
def test_i7_an_arbiter_killed_at_every_step_stops_no_job_and_inc_is_back_within_2_s(
    start_switch, start_arbiter, start_job, agreement
):
    switch = start_switch()
    options = (*OPTIONS, "--agreement", agreement)
    arbiter = start_arbiter(switch, *options)
    port, target = arbiter.port, arbiter.target
    jobs = [
        start_job(target, name, seconds=600, agreement=agreement)  # until the end of the test
        for name in ("one", "two")
    ]
    wait_until(lambda: time_of_first_inc(jobs, 0))
    waits = []
    for point, number in CRASHES:
        arbiter.kill()
        env = {"PRESAGE_TEST_CRASH": f"{point}:{number}"}
        crashing = start_arbiter(switch, *options, port=port, module=MODULE, env=env)
        try:
            crashing.process.wait(4)
        except Exception:
            crashing.kill()  # it had fewer steps than that
        time.sleep(1.5 if number % 2 else 0.0)  # with and without an end of all windows
        arbiter = start_arbiter(switch, *options, port=port)
        assert arbiter.target == target, arbiter.lines
        back_s = time.time()
        try:
            found = wait_until(lambda since_s=back_s: time_of_first_inc(jobs, since_s), 10)
        except AssertionError:
            ended = [process.poll() for job in jobs for process in job.processes]
            pytest.fail(f"{point}:{number}: {ended} {arbiter.log()[-2000:]} {arbiter.status()}")
        waits.append((round(found - back_s, 2), point, number))
    for job in jobs:
        for process in job.processes:
            assert process.poll() is None, "a job ended too early"
        job.check_no_number_is_split()
        times = [row[3] for row in job.rows()]
        longest_s = max(b - a for a, b in itertools.pairwise(times))
        assert longest_s < (1.5 if agreement == "in_band" else 4.0)
        job.close()
    assert max(waits)[0] <= BACK_S, sorted(waits)[-5:]
