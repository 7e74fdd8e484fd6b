"""State machine of one rank of a job: which way each of its AllReduces takes.

The queue of requirement I5 drives it: ``start`` when the next AllReduce is taken from the queue,
``receive`` for each message, ``complete_ring`` when a ring has ended. No two AllReduces of a rank
overlap. An AllReduce that is not allowed is a ring at once (I4).

An AllReduce that fails on the switch (refused, or no result in time) is decided by a vote of the
ranks. A rank that has no result promises to accept none and waits for the votes of all its peers.
If a peer has the result, all use it; otherwise all repeat the AllReduce by ring. The vote needs
neither the switch nor the controller.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.messages import (
    Contribution,
    Member,
    Message,
    Refusal,
    Result,
    Vote,
)
from presage.collectives.core.two_phase import TwoPhaseAgreement

Agreement: TypeAlias = InBandAgreement | TwoPhaseAgreement


class Phase(enum.IntEnum):
    """What a rank does with its current AllReduce."""

    IDLE = 0  # not started
    RING = 1  # running by ring or tree
    INC = 2  # sent to the switch
    VOTING = 3  # failed on the switch, votes of peers are missing


@dataclass(frozen=True, slots=True)
class RankState:
    """State of one rank.

    Attributes
    ----------
    member : Member
        Job, rank and number of ranks.
    agreement : InBandAgreement or TwoPhaseAgreement
        Agreement with the other ranks on the view.
    number : int
        Number of the current AllReduce, or of the next one if the rank is idle.
    phase : Phase
        What the rank does with it.
    contributed : int
        Epoch that the rank contributed to it.
    votes : frozenset of Vote
        Votes of peers on this AllReduce and the next one.
    last_min_epoch : int or None
        Smallest epoch of the previous AllReduce if the switch computed it: part of its result,
        which is kept for peers that have not received it.
    """

    member: Member
    agreement: Agreement
    number: int = 0
    phase: Phase = Phase.IDLE
    contributed: int = 0
    votes: frozenset[Vote] = frozenset()
    last_min_epoch: int | None = None

    @property
    def started(self) -> int:
        """Number of the AllReduce that was started last; -1 before the first one."""
        return self.number - (self.phase is Phase.IDLE)

    @property
    def is_on_switch(self) -> bool:
        """Whether the current AllReduce was sent to the switch and has no outcome yet."""
        return self.phase in (Phase.INC, Phase.VOTING)


class Step(NamedTuple):
    """Next state and the messages to send."""

    state: RankState
    messages: tuple[Message, ...] = ()


def start(state: RankState) -> Step:
    """Start the next AllReduce of an idle rank: on the switch if the view allows it, else by ring.

    Raises
    ------
    ValueError
        If the rank is not idle, or its agreement does not let it start.
    """
    if state.phase is not Phase.IDLE or not state.agreement.can_start:
        raise ValueError(f"rank {state.member} cannot start AllReduce {state.number}")
    newest = state.agreement.newest_epoch
    view = state.agreement.view
    if not view.is_allowed(state.number):
        return Step(replace(state, phase=Phase.RING, contributed=newest))
    running = replace(state, phase=Phase.INC, contributed=newest)
    if any(vote.number == state.number for vote in state.votes):
        return vote(running)  # a peer has given up already
    data = Contribution(*state.member, state.number, view.epoch, newest)
    return Step(running, (data,))


def receive(state: RankState, message: Message) -> Step:
    """Handle a message of the switch, the controller or a peer."""
    match message:
        case Result(number=state.number) if state.phase is Phase.INC:
            return _complete(state, message.min_epoch, message.min_epoch)
        case Refusal(number=state.number) if state.phase is Phase.INC:
            return vote(state)
        case Vote():
            return _receive_vote(state, message)
        case Result() | Refusal():
            return Step(state)  # late
    agreement, messages = state.agreement.receive(
        state.member, message, started=state.started, is_on_switch=state.is_on_switch
    )
    return Step(replace(state, agreement=agreement), messages)


def vote(state: RankState) -> Step:
    """Give up waiting for the switch: promise to accept no result, and send that to the peers.

    Called by ``receive``, and when the result has not come in time. It decides nothing alone.
    """
    messages = tuple(
        Vote(state.member.job, state.member.rank, peer, state.number, None)
        for peer in state.member.peers
    )
    return _count_votes(replace(state, phase=Phase.VOTING), messages)


def complete_ring(state: RankState, min_epoch: int) -> Step:
    """End an AllReduce by ring, which also computed the smallest contributed epoch."""
    if state.phase is not Phase.RING:
        raise ValueError(f"rank {state.member} runs no ring, but {state.phase.name}")
    return _complete(state, min_epoch, None)


def skip_rings(state: RankState, count: int) -> RankState:
    """Return an idle rank after ``count`` AllReduces by ring that exchanged no epochs.

    The same as ``start`` and ``complete_ring`` with the epoch in use, ``count`` times: a rank takes
    this step when it is about to do something else than a ring.

    Raises
    ------
    ValueError
        If the rank is not idle, cannot start, or its view allows one of them on the switch.
    """
    if not count:
        return state
    numbers = range(state.number, state.number + count)
    view = state.agreement.view
    if state.phase is not Phase.IDLE or not state.agreement.can_start:
        raise ValueError(f"rank {state.member} cannot start AllReduce {state.number}")
    if any(view.is_allowed(number) for number in numbers):
        raise ValueError(f"rank {state.member}: its view allows some of AllReduces {numbers}")
    return RankState(
        member=state.member,
        agreement=state.agreement,
        number=numbers.stop,
        votes=frozenset(vote for vote in state.votes if vote.number >= numbers.stop),
    )


def time_out_agreement(state: RankState) -> Step:
    """Pass a silence of the controller that is too long to the agreement."""
    agreement, messages = state.agreement.time_out(state.member, started=state.started)
    return Step(replace(state, agreement=agreement), messages)


def _receive_vote(state: RankState, message: Vote) -> Step:
    if message.number < state.number:
        return Step(state, _answer(state, message))
    known = replace(state, votes=state.votes | {message})
    if message.number != state.number:
        return Step(known)
    if known.phase is Phase.INC:
        return vote(known)
    return _count_votes(known, ()) if known.phase is Phase.VOTING else Step(known)


def _answer(state: RankState, message: Vote) -> tuple[Message, ...]:
    """Send the result of the previous AllReduce to a peer that has failed to receive it."""
    is_previous = message.number == state.number - 1
    if not is_previous or message.min_epoch is not None or state.last_min_epoch is None:
        return ()
    own = Vote(message.job, message.receiver, message.sender, message.number, state.last_min_epoch)
    return (own,)


def _count_votes(state: RankState, sent: tuple[Message, ...]) -> Step:
    """Decide the current AllReduce once the votes of all peers are known."""
    votes = [vote for vote in state.votes if vote.number == state.number]
    if {vote.sender for vote in votes} != set(state.member.peers):
        return Step(state, sent)
    results = [vote.min_epoch for vote in votes if vote.min_epoch is not None]
    if not results:
        return Step(replace(state, phase=Phase.RING), sent)
    completed = _complete(state, results[0], results[0])
    return Step(completed.state, sent + completed.messages)


def _complete(state: RankState, min_epoch: int, switch_epoch: int | None) -> Step:
    agreement, messages = state.agreement.complete(state.member, state.number, min_epoch)
    following = state.number + 1
    completed = RankState(
        member=state.member,
        agreement=agreement,
        number=following,
        votes=frozenset(vote for vote in state.votes if vote.number >= following),
        last_min_epoch=switch_epoch,
    )
    return Step(completed, messages)
