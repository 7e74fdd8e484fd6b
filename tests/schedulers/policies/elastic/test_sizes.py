"""Devices go where they raise the rate of completions most, and a device's memory by S4."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.policies.elastic.memory_share import memory_share_bytes
from presage.schedulers.policies.elastic.sizes import Demand, allocate, completion_rate, increments

GIB = 2**30
NORMAL = (True, 0)


def linear(work_s):
    return lambda gpus: work_s / gpus


def saturating(work_s, parallel):
    return lambda gpus: work_s * (1 - parallel + parallel / gpus)


def rates(sizes, run_s, requested):
    return increments(sizes, lambda gpus: completion_rate(run_s(gpus)), requested)


def demand(sizes, run_s, rank=NORMAL, left=1.0, requested=99):
    return Demand(rank, left, rates(sizes, run_s, requested), requested)


def test_a_job_that_scales_linearly_gains_as_much_by_each_device():
    found = rates(range(1, 5), linear(8.0), 4)

    assert [one.gpus for one in found] == [1, 2, 3, 4]
    assert [one.density for one in found] == pytest.approx([1 / 8.0] * 4)


def test_a_size_that_is_no_faster_than_a_smaller_one_is_never_taken():
    times = {1: 10.0, 2: 5.0, 3: 6.0, 4: 5.0, 5: math.inf, 6: 2.0}

    assert [one.gpus for one in rates(range(1, 6), times.__getitem__, 9)] == [1, 2]
    assert [one.gpus for one in rates(range(1, 7), times.__getitem__, 9)] == [1, 2, 6]


def test_a_job_of_unknown_run_time_gets_its_fewest_devices():
    assert rates(range(2, 9), lambda gpus: math.inf, 4) == ((0.0, 2),)


def test_the_shortest_job_gets_devices_that_all_would_use_equally_well():
    long, short = demand(range(1, 9), linear(800.0)), demand(range(1, 9), linear(80.0))

    assert allocate([long, short], 8) == [0, 8]
    assert allocate([long, short], 10) == [2, 8]


def test_devices_go_to_the_job_that_scales():
    scales, saturates = saturating(100.0, 1.0), saturating(100.0, 0.5)

    assert allocate([demand(range(1, 9), saturates), demand(range(1, 9), scales)], 8)[1] >= 6


def test_no_job_grows_beyond_its_request_at_the_expense_of_another():
    short = demand(range(1, 9), linear(10.0), requested=4)
    long = demand(range(2, 9), linear(1000.0), requested=4)

    assert allocate([short, long], 8) == [4, 4]
    assert allocate([short, long], 10) == [6, 4]
    assert allocate([short, long], 5) == [5, 0]  # what the other cannot use


def test_no_increment_passes_over_the_request():
    times = {1: 10.0, 2: 9.0, 3: 1.0}

    assert [one.gpus for one in rates(range(1, 4), times.__getitem__, 2)] == [1, 2, 3]


def test_classes_and_priorities_precede_gains():
    best_effort = demand([1], linear(1.0))
    urgent = demand(range(1, 3), linear(1000.0), rank=(False, 0))
    preferred = demand([1], linear(1000.0), rank=(True, -1))

    assert allocate([best_effort, urgent, preferred], 3) == [0, 2, 1]


def test_a_gang_that_does_not_fit_leaves_its_devices_to_others():
    assert allocate([demand([8], linear(1.0)), demand([2], linear(100.0))], 7) == [0, 2]


def test_the_remaining_work_of_a_job_counts():
    fresh, nearly_done = demand([4], linear(50.0)), demand([4], linear(400.0), left=0.01)

    assert allocate([fresh, nearly_done], 4) == [0, 4]


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 6), st.floats(1.0, 1e6), st.floats(0.0, 1.0)),
        max_size=12,
    ),
    st.integers(0, 24),
)
def test_allocations_are_possible_sizes_and_fit(jobs, devices):
    demands = [
        demand(range(least, least + more + 1), saturating(work_s, parallel))
        for least, more, work_s, parallel in jobs
    ]
    found = allocate(demands, devices)

    assert sum(found) <= devices
    for gpus, (least, more, _, _) in zip(found, jobs, strict=True):
        assert gpus == 0 or least <= gpus <= least + more


def test_s4_memory_shares_go_down_as_a_device_fills_and_never_below_the_bound():
    capacity = 16 * GIB
    assert memory_share_bytes(3 * GIB, capacity) == capacity  # the first job gets all of it
    assert memory_share_bytes(3 * GIB, capacity, [2 * GIB]) == 8 * GIB
    assert memory_share_bytes(10 * GIB, capacity, [2 * GIB]) == 10 * GIB  # its bound
    assert memory_share_bytes(3 * GIB, capacity, [12 * GIB]) == 4 * GIB  # what can be freed
    assert memory_share_bytes(5 * GIB, capacity, [6 * GIB, 6 * GIB]) == 0  # full: it waits
    assert memory_share_bytes(0, capacity, [capacity]) == 0


@given(
    st.integers(0, 20 * GIB), st.integers(1, 16 * GIB), st.lists(st.integers(0, GIB), max_size=9)
)  # fmt: skip
def test_s4_a_share_holds_the_job_and_leaves_the_others_their_bounds(bound, capacity, running):
    share = memory_share_bytes(bound, capacity, running)

    assert share == 0 or bound <= share <= capacity - sum(running)
