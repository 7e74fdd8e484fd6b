"""Rings that are only counted: the state machine ends where full steps would have led."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.collectives.core import rank as machine
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import Member, Vote
from presage.collectives.core.rank import Phase, RankState
from presage.collectives.core.view import JobView, Reason

CODES = [int(reason) for reason in Reason]


@given(
    decisions=st.binary(max_size=40).map(lambda b: bytes(CODES[c % len(CODES)] for c in b)),
    first=st.integers(0, 20),
    number=st.integers(0, 70),
)
def test_the_next_allowed_number_is_the_first_that_is_allowed(decisions, first, number):
    view = JobView(1, first, decisions)

    expected = next((n for n in range(number, first + 100) if view.is_allowed(n)), None)

    assert view.next_allowed(number) == expected


@given(
    table=st.lists(st.sampled_from([Reason.IN_USE, Reason.REVOKED, Reason.NO_OTHER_ARRIVAL])),
    count=st.integers(0, 30),
    voted=st.lists(st.integers(0, 31)),
)
def test_i6_skipped_rings_are_starts_and_ends_with_the_epoch_in_use(table, count, voted):
    view = JobView(3, 0, bytes(table))
    votes = frozenset(Vote("a", 1, 0, number, None) for number in voted)
    state = RankState(Member("a", 0, 2), InBandAgreement((view,)), votes=votes, last_min_epoch=3)
    limit = view.next_allowed(0)
    count = count if limit is None else min(count, limit)

    expected = state
    for _ in range(count):
        started = machine.start(expected).state
        expected = machine.complete_ring(started, view.epoch).state

    assert machine.skip_rings(state, count) == expected


def test_an_allreduce_that_the_view_allows_is_not_skipped():
    view = JobView(1, 0, bytes([Reason.IN_USE, Reason.HIGHEST_SCORE]))
    state = RankState(Member("a", 0, 2), InBandAgreement((view,)))

    assert machine.skip_rings(state, 1).number == 1
    with pytest.raises(ValueError, match="allows"):
        machine.skip_rings(state, 2)
    with pytest.raises(ValueError, match="cannot start"):
        machine.skip_rings(replace(state, phase=Phase.RING), 1)
