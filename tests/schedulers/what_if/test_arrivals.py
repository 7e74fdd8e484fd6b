"""Later arrivals: copies of the past, in numbers that differ from it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from random import Random
from statistics import fmean, pstdev
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.what_if import arrivals
from presage.schedulers.what_if.arrivals import DAY_S, Arrivals
from presage.schedulers.what_if.snapshot import Past, PastJob
from tests.schedulers.clusters import cluster, job
from tests.schedulers.what_if.paused import paused

DAYS = 32


def arrivals_after(times_s, now_s=DAYS * DAY_S):
    jobs = [PastJob(job(f"p{i}", at_s), at_s + 1.0, 1.0) for i, at_s in enumerate(times_s)]
    snapshot = paused(cluster(1), [], {}, at_s=0.0)
    return Arrivals(replace(snapshot, now_s=now_s, past=Past(jobs)))


def hourly(from_day=0, to_day=DAYS, every_s=3_600.0):
    return [
        from_day * DAY_S + every_s * i for i in range(int((to_day - from_day) * DAY_S / every_s))
    ]


def log_counts(found, days=4, draws=300):
    until_s = (DAYS + days) * DAY_S - 1
    return [
        math.log(
            max(0.5, sum(one.submit_s <= until_s for one, _ in found.draw(Random(i), until_s)))
        )
        for i in range(draws)
    ]


def test_the_number_of_jobs_varies_by_the_spread_of_a_block_where_the_past_is_constant():
    found = log_counts(arrivals_after(hourly()))

    assert fmean(found) == pytest.approx(math.log(4 * 24), abs=0.08)
    assert pstdev(found) == pytest.approx(arrivals.BLOCK_SPREAD, rel=0.15)


def test_all_blocks_of_a_future_have_its_factor():
    """It is between the least and the greatest number of copies, which are next to each other."""
    changed = arrivals_after(hourly(0, 16, every_s=7_200.0) + hourly(16, every_s=450.0))
    seen = set()
    with (
        mock.patch.object(arrivals, "BLOCK_SPREAD", 0.0),
        mock.patch.object(arrivals, "CHANGE_SPREAD", 0.4),
    ):
        for seed in range(40):
            later = changed.draw(Random(seed), (DAYS + 12) * DAY_S)
            copies = Counter((one.submit_s, of.job_id) for one, of in later)
            assert max(copies.values()) - min(copies.values()) <= 1
            seen |= set(copies.values())

    assert seen >= {1, 2, 3}


def test_a_burst_in_an_empty_past_is_seldom_eightfold_and_never_more():
    burst = arrivals_after([0.0, *(18 * DAY_S + i for i in range(500))])
    one_block_s = (DAYS + 4) * DAY_S - 1
    with mock.patch.object(arrivals, "BLOCK_SPREAD", 0.0):
        counts = [sum(1 for _ in burst.draw(Random(i), one_block_s)) for i in range(1_000)]

    found = [count for count in counts if count >= 20]  # the others repeat an empty block
    assert len(found) > 50
    assert max(found) <= 8 * 501
    assert sum(count > 7.9 * 500 for count in found) < 0.03 * len(found)


def test_factors_are_eight_at_most():
    with mock.patch.object(arrivals, "BLOCK_SPREAD", 2.0):
        found = arrivals_after(hourly())
        counts = [sum(1 for _ in found.draw(Random(i), (DAYS + 4) * DAY_S - 1)) for i in range(50)]

    assert max(counts) == 8 * 4 * 24


def test_a_rate_that_changed_in_the_past_makes_the_number_more_uncertain():
    faster = hourly(0, DAYS // 2) + hourly(DAYS // 2, DAYS, every_s=450.0)
    with mock.patch.object(arrivals, "CHANGE_SPREAD", 0.0):
        without = pstdev(log_counts(arrivals_after(faster)))

    assert pstdev(log_counts(arrivals_after(faster))) > 1.15 * without


def test_without_factors_blocks_are_repeated_as_they_were():
    with (
        mock.patch.object(arrivals, "CHANGE_SPREAD", 0.0),
        mock.patch.object(arrivals, "BLOCK_SPREAD", 0.0),
    ):
        found = log_counts(arrivals_after(hourly()), draws=20)

    assert set(found) == {math.log(4 * 24)}


def test_copies_keep_the_time_of_day():
    nights = [day * DAY_S + 7_200.0 for day in range(DAYS)]

    found = [later for later, _ in arrivals_after(nights).draw(Random(0), 60 * DAY_S)]

    assert found
    assert {later.submit_s % DAY_S for later in found} == {7_200.0}


@given(st.lists(st.floats(0, DAYS * DAY_S - 1), min_size=1, max_size=50), st.integers(0, 99))
def test_copies_arrive_in_order_after_the_question_and_have_names_of_their_own(times_s, seed):
    found = list(arrivals_after(times_s).draw(Random(seed), (DAYS + 20) * DAY_S))

    at_s = [later.submit_s for later, _ in found]
    assert at_s == sorted(at_s)
    assert all(one >= DAYS * DAY_S for one in at_s)
    assert len({later.job_id for later, _ in found}) == len(found)
    assert all(
        later == replace(of, job_id=later.job_id, submit_s=later.submit_s) for later, of in found
    )
