"""Views, windows of numbers, and the time that a decision takes."""

from __future__ import annotations

import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.collectives.core.view import JobView, Reason, View
from tests.collectives.core.jobs import job, view

tables = st.binary(max_size=6).map(lambda raw: bytes(code % 7 for code in raw))
views = st.builds(JobView, st.integers(1, 9), st.integers(0, 4), tables)


def test_i4_numbers_outside_the_window_run_by_ring():
    window = JobView(1, first_number=10, decisions=bytes([1, 2]))

    assert [window.is_allowed(number) for number in (9, 10, 11, 12)] == [False, True, False, False]
    assert window.reason(12) is Reason.OUTSIDE_WINDOW
    assert window.reason(11) is Reason.IN_USE


@given(views, views, st.integers(-2, 12))
def test_an_intersection_allows_what_both_allow(one, other, number):
    both = one.intersection(other)

    assert both.is_allowed(number) == (one.is_allowed(number) and other.is_allowed(number))
    assert not both.revokes(both)
    assert not one.revokes(both)
    allowed = [n for n in range(20) if one.is_allowed(n)]
    assert both.revokes(one) == any(not other.is_allowed(n) for n in allowed)


def test_a_window_that_moves_on_revokes_nothing():
    old, later = JobView(1, 0, bytes([1] * 4)), JobView(2, 2, bytes([1] * 4))

    assert not later.revokes(old)
    assert JobView(2, 2, bytes([1])).revokes(old)  # number 3 was allowed


@given(views, st.integers(-2, 12), st.integers(-2, 12))
def test_a_view_is_cut_before_a_number(one, end, number):
    assert one.before(end).is_allowed(number) == (one.is_allowed(number) and number < end)


def test_a_decision_takes_at_most_5_microseconds():
    table = JobView(1, 0, bytes([1, 2] * 2048))
    times_s = []
    for number in range(2000):
        started_s = time.perf_counter()
        table.is_allowed(number)
        times_s.append(time.perf_counter() - started_s)

    assert statistics.median(times_s) <= 5e-6


@pytest.mark.parametrize(
    "broken, words",
    [
        (lambda: view(job("a"), job("a")), "same id"),
        (lambda: View(1, (), (job("a"),), (0,), 4), "unknown switch 's'"),
        (lambda: View(1, (("s", 1),), (job("a"),), (), 4), "0 first numbers"),
        (lambda: view(job("a"), slots=-1), "at least 0"),
        (lambda: job("a", ranks=0), "ranks=0"),
        (lambda: job("a", offsets_s=()), "no AllReduce"),
        (lambda: job("a", switches=()), "no switch"),
        (lambda: job("a", size=-1), "negative size"),
    ],
)
def test_a_view_that_cannot_be_is_rejected(broken, words):
    with pytest.raises(ValueError, match=words):
        broken()
