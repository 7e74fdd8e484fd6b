"""One rank: the way of each AllReduce, and the vote after a failure on the switch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from presage.collectives.core import rank as machine
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import (
    Contribution,
    Member,
    Refusal,
    RefusalReason,
    Result,
    Vote,
)
from presage.collectives.core.rank import Phase, RankState
from presage.collectives.core.view import JobView

ALLOWED = InBandAgreement((JobView(3, 0, bytes([1, 1])),))


def a_rank(number=0, agreement=ALLOWED, size=3):
    return RankState(Member("a", 0, size), agreement, number)


def running(size=3):
    return machine.start(a_rank(size=size)).state


def refusal(number=0):
    return Refusal("a", 0, number, RefusalReason.BUSY)


def peer_vote(sender, result=None, number=0):
    return Vote("a", sender, 0, number, result)


def test_i4_what_is_not_allowed_runs_by_ring_at_once():
    step = machine.start(a_rank(agreement=InBandAgreement()))

    assert step.state.phase is Phase.RING
    assert step.messages == ()


def test_what_is_allowed_is_sent_to_the_switch_with_the_epochs():
    step = machine.start(a_rank())

    assert step.state.phase is Phase.INC
    assert step.messages == (Contribution("a", 0, 3, number=0, epoch=3, newest=3),)


def test_i5_no_two_allreduces_of_a_rank_overlap():
    with pytest.raises(ValueError, match="cannot start"):
        machine.start(running())


def test_a_result_ends_the_allreduce():
    state = machine.receive(running(), Result("a", 0, 0, 3)).state

    assert (state.number, state.phase, state.last_min_epoch) == (1, Phase.IDLE, 3)
    assert machine.receive(state, Result("a", 0, 0, 3)).state == state  # a duplicate


def test_i7_a_refused_rank_asks_its_peers_and_decides_nothing_alone():
    step = machine.receive(running(), refusal())

    assert step.state.phase is Phase.VOTING
    assert step.messages == (Vote("a", 0, 1, 0, None), Vote("a", 0, 2, 0, None))
    assert machine.receive(step.state, Result("a", 0, 0, 3)).state == step.state  # promised


def test_i7_all_ranks_without_a_result_use_ring():
    state = machine.receive(running(), refusal()).state
    state = machine.receive(state, peer_vote(1)).state
    assert state.phase is Phase.VOTING

    assert machine.receive(state, peer_vote(2)).state.phase is Phase.RING


def test_i7_the_result_of_one_peer_is_the_result_of_all():
    state = machine.receive(running(), refusal()).state
    state = machine.receive(state, peer_vote(1)).state
    state = machine.receive(state, peer_vote(2, result=3)).state

    assert (state.number, state.last_min_epoch) == (1, 3)


def test_i7_a_rank_that_is_ahead_gives_its_result_to_a_peer():
    ahead = machine.receive(running(), Result("a", 0, 0, 3)).state

    assert machine.receive(ahead, peer_vote(1)).messages == (Vote("a", 0, 1, 0, 3),)


def test_a_vote_of_a_peer_makes_a_rank_vote():
    step = machine.receive(running(size=2), peer_vote(1))

    assert step.state.phase is Phase.RING
    assert step.messages == (Vote("a", 0, 1, 0, None),)


def test_a_vote_before_the_start_is_kept():
    early = machine.receive(a_rank(size=2), peer_vote(1)).state
    step = machine.start(early)

    assert step.state.phase is Phase.RING
    assert not any(isinstance(message, Contribution) for message in step.messages)


def test_a_ring_can_end_only_if_it_runs():
    with pytest.raises(ValueError, match="runs no ring"):
        machine.complete_ring(running(), 3)


def test_states_are_hashable_values():
    assert len({a_rank(), a_rank(), replace(a_rank(), number=1)}) == 2
