"""An event log as arrays: worked examples, and laws under every policy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.faults.fault import Fault
from presage.schedulers.policies.policy_registry import POLICIES
from presage.schedulers.report.bars import make_bars
from presage.schedulers.simulator.results.timeline import ENDS, Steps, make_timeline
from tests.schedulers.clusters import cluster, simulated
from tests.schedulers.simulator.test_simulator import Packs, Sizes, traces


def allocations(*devices, share=FULL_DEVICE_MILLI):
    return tuple(Allocation(device, share, 0) for device in devices)


def of(simulation):
    """Return the timeline of a simulation."""
    over = {one.job.job_id for one in simulation.results}
    return make_timeline(simulation.log.entries, simulation.ledger.cluster, over)


def held_of(line):
    """Return rows in a readable form."""
    held = line.intervals
    columns = (held.device, held.start_s, held.end_s, held.compute_milli, held.paused)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    names = [line.job_ids[i] for i in held.job]
    return [
        (name, *row, ENDS[end]) for name, row, end in zip(names, rows, held.ended_by, strict=True)
    ]


def test_each_state_of_a_job_is_an_interval_on_each_device():
    log = [
        (0.0, "submit", "a", {"gpus": 2}),
        (0.0, "submit", "b", None),
        (1.0, "start", "a", allocations(2, 0)),
        (3.0, "resize", "a", allocations(0)),
        (4.0, "pause", "a", None),
        (6.0, "resume", "a", None),
        (7.0, "migrate", "a", allocations(1, share=500)),
        (8.0, "fail", "", {"node": "n0"}),
        (8.0, "lost", "a", None),
        (8.0, "fail", "", {"node": "n0"}),
        (9.0, "repair", "", {"node": "n0"}),
        (9.0, "repair", "", {"node": "n0"}),
        (9.0, "start", "a", allocations(3)),
        (9.0, "preempt", "a", None),
        (10.0, "start", "a", allocations(3)),
        (11.0, "fail", "", {"node": "n0"}),
        (12.0, "refused", "", "no"),
    ]
    line = make_timeline(log, cluster(2, 2), ended=())

    assert held_of(line) == [
        ("a", 0, 1.0, 3.0, FULL_DEVICE_MILLI, False, "resize"),
        ("a", 2, 1.0, 3.0, FULL_DEVICE_MILLI, False, "resize"),
        ("a", 0, 3.0, 4.0, FULL_DEVICE_MILLI, False, "pause"),
        ("a", 0, 4.0, 6.0, FULL_DEVICE_MILLI, True, "resume"),
        ("a", 0, 6.0, 7.0, FULL_DEVICE_MILLI, False, "migrate"),
        ("a", 1, 7.0, 8.0, 500, False, "lost"),
        ("a", 3, 10.0, 12.0, FULL_DEVICE_MILLI, False, "log"),
    ]
    waits = zip(line.pending.index.tolist(), line.pending.start_s, line.pending.end_s, strict=True)
    assert list(waits) == [(0, 0.0, 1.0), (0, 8.0, 9.0), (0, 9.0, 10.0), (1, 0.0, 12.0)]
    assert list(zip(line.outages.start_s, line.outages.end_s, strict=True)) == [
        (8.0, 9.0),
        (11.0, 12.0),
    ]
    busy = line.busy_devices()
    assert busy.at_s.tolist() == [1.0, 3.0, 8.0, 10.0, 12.0]
    assert busy.value.tolist() == [2.0, 1.0, 0.0, 1.0, 0.0]
    assert line.allocated_compute().integral(12.0) == 4 + 1 + 1 + 0.5 + 2
    up = line.devices_up()
    assert (up.at_s.tolist(), up.value.tolist()) == ([0, 8, 9, 11, 12], [4, 2, 4, 2, 4])


def test_an_empty_log_is_an_empty_timeline():
    line = make_timeline([], cluster(1), ended=())

    assert (line.job_ids, line.end_s, len(line.intervals.job)) == ((), 0.0, 0)
    assert line.busy_devices().value.tolist() == []


@pytest.mark.parametrize("policy", POLICIES)
@given(trace=traces(), fails_s=st.sampled_from((3.0, 9.0, 1e6)))
def test_device_time_and_waiting_time_are_those_of_the_ledger(policy, trace, fails_s):
    """The integral of the queue length is the sum of waiting times (Little's law)."""
    jobs, ground_truth = trace
    faults = [Fault(fails_s, 0, repaired=False), Fault(fails_s + 20.0, 0, repaired=True)]
    done = simulated(cluster(2, 2), POLICIES[policy](), jobs, ground_truth, faults=faults)
    line = of(done)
    held_s = (line.intervals.end_s - line.intervals.start_s).sum()
    attained_s = sum(one.status.attained_s for one in done.results)
    waited_s = sum(one.status.waited_s for one in done.results)

    assert len(done.results) == len(jobs)
    assert held_s == pytest.approx(attained_s)
    assert line.pending_jobs().integral(line.end_s) == pytest.approx(waited_s)
    busy, up = line.busy_devices(), line.devices_up()
    place = np.searchsorted(up.at_s, busy.at_s, side="right") - 1
    assert (busy.value <= up.value[place]).all()
    assert busy.integral(line.end_s) == pytest.approx(done.busy_s)


@given(trace=traces(most_gpus=1), gib=st.sampled_from((1, 9)))
def test_jobs_that_share_devices_are_drawn_side_by_side(trace, gib):
    jobs, ground_truth = trace
    done = simulated(
        cluster(2, 1), Packs(), jobs, Sizes(ground_truth, dict.fromkeys(ground_truth, gib))
    )
    line = of(done)
    held, bars = line.intervals, make_bars(line.intervals)
    area = bars.share_milli * bars.devices * (bars.end_s - bars.start_s) / FULL_DEVICE_MILLI

    assert area.sum() == pytest.approx(line.allocated_compute().integral(line.end_s))
    assert line.allocated_compute().value.max() <= 3
    assert (np.diff(bars.start_s) >= 0).all()
    assert len(bars.job) <= len(held.job)
    order = np.lexsort((bars.start_s, bars.device))
    rows = [
        (bars.device[i], bars.above_milli[i], bars.above_milli[i] + bars.share_milli[i],
         bars.start_s[i], bars.end_s[i])
        for i in order
    ]  # fmt: skip
    for i, (device, top, bottom, start_s, end_s) in enumerate(rows):
        assert 0 <= top < bottom <= FULL_DEVICE_MILLI
        for other, above, below, from_s, until_s in rows[:i]:
            if device == other and start_s < until_s and from_s < end_s:
                assert bottom <= above or below <= top


def test_devices_side_by_side_are_one_bar():
    log = [
        (0.0, "submit", "a", None),
        (0.0, "start", "a", allocations(3, 0, 1)),
        (2.0, "finish", "a", None),
    ]
    bars = make_bars(make_timeline(log, cluster(4), ended={"a"}).intervals)

    assert (bars.device.tolist(), bars.devices.tolist()) == ([0, 3], [2, 1])


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_a_curve_with_fewer_steps_has_the_same_area(parts, most):
    at_s = np.cumsum([0.0, *(length for length, _ in parts[:-1])])
    end_s = at_s[-1] + parts[-1][0]
    steps = Steps(at_s, np.array([value for _, value in parts], dtype=float))
    coarse = steps.resample(0.0, end_s, most)

    assert len(coarse.at_s) <= most
    assert coarse.integral(end_s) == pytest.approx(steps.integral(end_s))
    assert steps.resample(0.0, end_s, 60) is steps
