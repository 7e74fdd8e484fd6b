"""Adapters from the machines of ``collectives.core`` to numbered local states and messages.

The machines are pure, so each of their steps is computed once, by the real code, and stored by the
numbers of the local state and the message. A set of messages is an integer with a bit for each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from presage.collectives.core import messages as m
from presage.collectives.core.rank import RankState
from presage.collectives.core.switch import Running, SwitchState
from presage.collectives.core.two_phase import TwoPhaseAgreement
from presage.collectives.core.two_phase_controller import TwoPhaseController


class Ways(NamedTuple):
    """How a rank began and ended an AllReduce: I for the switch, R for ring, - for not yet."""

    number: int
    began: str
    ended: str


class RankLocal(NamedTuple):
    """A rank with the ways of its last two AllReduces; ``state`` is None after a crash."""

    state: RankState | None
    ways: tuple[Ways, ...] = ()


class ControllerLocal(NamedTuple):
    """A controller with the number of plans it has proposed, and of tries of the last one."""

    state: Any
    proposed: int = 0
    tries: int = 0


@dataclass
class Interned:
    """Numbers of hashable values."""

    values: list[Any] = field(default_factory=list)
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, value: Hashable) -> int:
        key = (type(value), value)  # named tuples of different types may be equal
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.values)
            self.values.append(value)
        return found


class Network(Interned):
    """Numbers of messages, and sets of them as integers."""

    def mask(self, messages: Iterable[m.Message]) -> int:
        mask = 0
        for message in messages:
            mask |= 1 << self.number(message)
        return mask

    def bits(self, mask: int) -> list[int]:
        found = []
        while mask:
            low = mask & -mask
            found.append(low.bit_length() - 1)
            mask ^= low
        return found


TO_RANK = (m.Result, m.Refusal, m.Vote, m.ViewUpdate, m.Prepare, m.Update, m.Abort, m.Status)
TO_SWITCH = (m.Contribution, m.Admission)
RELIABLE = (m.Vote, m.Status)
FROM_CONTROLLER = (m.ViewUpdate, m.Prepare, m.Update, m.Abort)


def swapped_message(message: m.Message, job: str) -> m.Message:
    """Return a message with the two ranks of a job exchanged."""
    if getattr(message, "job", None) != job:
        return message
    changes = {
        name: 1 - getattr(message, name)
        for name in ("rank", "sender", "receiver")
        if hasattr(message, name)
    }
    return message._replace(**changes)


def _swapped_all(messages: Iterable[Any], job: str) -> frozenset[Any]:
    return frozenset(swapped_message(message, job) for message in messages)


def swapped_rank(local: RankLocal, job: str) -> RankLocal:
    """Return a rank of a job as if it were the other one."""
    state = local.state
    if state is None:
        return local
    agreement = state.agreement
    if isinstance(agreement, TwoPhaseAgreement):
        agreement = replace(agreement, statuses=_swapped_all(agreement.statuses, job))
    member = state.member._replace(rank=1 - state.member.rank)
    votes = _swapped_all(state.votes, job)
    return local._replace(state=replace(state, member=member, agreement=agreement, votes=votes))


def swapped_switch(state: SwitchState | None, job: str) -> SwitchState | None:
    """Return a switch with the two ranks of a job exchanged."""
    if state is None:
        return None

    def swap(running: Running) -> Running:
        if running.job != job:
            return running
        pairs = frozenset((1 - rank, newest) for rank, newest in running.contributed)
        return replace(running, contributed=pairs)

    return replace(state, running=tuple(map(swap, state.running)))


def swapped_controller(local: ControllerLocal, job: str) -> ControllerLocal:
    """Return a controller with the two ranks of a job exchanged."""
    state = local.state
    if not isinstance(state, TwoPhaseController):
        return local
    done = frozenset((j, 1 - rank if j == job else rank) for j, rank in state.done)
    return local._replace(state=replace(state, acks=_swapped_all(state.acks, job), done=done))
