"""Durations of an AllReduce by the way in which it runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.collectives.core.costs import Link, inc_s, ring_s, time_saved_s, tree_s

LINK = Link(latency_s=0.001, bandwidth_bytes_per_s=1e6)


def test_i9_costs_of_ring_tree_and_switch():
    assert ring_s(4, 1e6, LINK) == pytest.approx(6 * 0.001 + 1.5)
    assert tree_s(4, 1e6, LINK) == pytest.approx(4 * 0.001 + 2)
    assert inc_s(4, 1e6, LINK) == pytest.approx(2 * 0.001 + 1)


@pytest.mark.parametrize("ranks, ratio", [(2, 1.0), (3, 4 / 3), (4, 1.5)])
def test_i9_ratio_of_ring_to_switch_without_latency(ranks, ratio):
    link = Link(0.0, 1e6)

    assert ring_s(ranks, 1e6, link) / inc_s(ranks, 1e6, link) == pytest.approx(ratio)


def test_a_job_of_one_rank_exchanges_nothing():
    assert ring_s(1, 1e9, LINK) == tree_s(1, 1e9, LINK) == inc_s(1, 1e9, LINK) == 0


@given(st.integers(2, 10**5), st.floats(0, 1e12))
def test_i8_the_switch_is_never_slower_than_ring(ranks, size):
    assert time_saved_s(ranks, size, LINK) >= -1e-9 * ring_s(ranks, size, LINK)


@pytest.mark.parametrize("latency, bandwidth", [(-1, 1), (float("nan"), 1), (0, 0), (0, -1)])
def test_an_impossible_link_is_rejected(latency, bandwidth):
    with pytest.raises(ValueError, match="must be"):
        Link(latency, bandwidth)
