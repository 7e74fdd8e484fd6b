"""State machine of a switch: which AllReduces it aggregates. The sums are not part of it.

A switch trusts no rank. It aggregates only for jobs that the controller admitted, refuses epochs
older than the controller's floor for the job, and never has AllReduces of more jobs than slots. A
restarted switch has forgotten all that: it admits no job until the controller answers its
``Hello``. Refusals are immediate, so no rank waits for a slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from presage.collectives.core.messages import (
    Admission,
    Admitted,
    Contribution,
    Hello,
    Message,
    Refusal,
    RefusalReason,
    Result,
)


@dataclass(frozen=True, slots=True)
class Running:
    """AllReduce that waits for contributions of more ranks.

    Attributes
    ----------
    job, size, number, epoch
        Job and its number of ranks, number of the AllReduce, and smallest epoch by which a rank
        chose the switch.
    contributed : frozenset of (int, int)
        Ranks that have contributed, each with the epoch of its newest view.
    """

    job: str
    size: int
    number: int
    epoch: int
    contributed: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SwitchState:
    """State of a switch.

    Attributes
    ----------
    slots : int
        Number of jobs that it aggregates for at a time.
    incarnation : int
        Higher at each start of the switch.
    token : int
        Token of the newest admission; older ones are ignored.
    floors : tuple of (str, int)
        Admitted jobs, each with the oldest accepted epoch.
    running : tuple of Running
        Unfinished AllReduces, at most one of a job, by job.
    closed : tuple of (str, int)
        Highest number of each job that has ended or was refused; it is not begun again.
    """

    slots: int
    incarnation: int = 1
    token: int = 0
    floors: tuple[tuple[str, int], ...] = ()
    running: tuple[Running, ...] = ()
    closed: tuple[tuple[str, int], ...] = field(default=())


class Step(NamedTuple):
    """Next state and the messages to send."""

    state: SwitchState
    messages: tuple[Message, ...] = ()


Pairs: TypeAlias = tuple[tuple[str, int], ...]


def receive(state: SwitchState, message: Message) -> Step:
    """Handle a contribution of a rank or an admission of the controller."""
    if isinstance(message, Admission):
        return _admit(state, message)
    if isinstance(message, Contribution):
        return _contribute(state, message)
    return Step(state)


def hello(state: SwitchState) -> Step:
    """Announce the switch to the controller: repeated until it is admitted."""
    return Step(state, (Hello(state.incarnation),))


def restart(state: SwitchState) -> Step:
    """Return the state after a crash: only the hardware is the same."""
    return hello(SwitchState(state.slots, state.incarnation + 1))


def expire(state: SwitchState, job: str) -> Step:
    """End the lease of a job whose AllReduce has waited for too long for its other ranks."""
    return _evict(state, [running for running in state.running if running.job == job])


def _admit(state: SwitchState, message: Admission) -> Step:
    if not _is_current(state, message):
        return Step(state)
    floors = dict(message.floors)
    admitted = replace(state, token=message.token, floors=message.floors)
    old = [r for r in state.running if r.job not in floors or r.epoch < floors[r.job]]
    step = _evict(admitted, old)
    closed = tuple((job, number) for job, number in step.state.closed if job in floors)
    admission = Admitted(state.incarnation, message.token)
    return Step(replace(step.state, closed=closed), (*step.messages, admission))


def _is_current(state: SwitchState, message: Admission) -> bool:
    """Return whether an admission is meant for this start of the switch, and is not outdated."""
    return message.incarnation == state.incarnation and message.token >= state.token


def _contribute(state: SwitchState, message: Contribution) -> Step:
    if _is_stale(state, message):
        return _refuse(state, message, RefusalReason.STALE)
    own = [r for r in state.running if r.job == message.job and r.number == message.number]
    if not own and not _has_free_slot(state, message.job):
        closed = _raised(state.closed, message.job, message.number)
        return _refuse(replace(state, closed=closed), message, RefusalReason.BUSY)
    before = own[0] if own else None
    contributed = (before.contributed if before else frozenset()) | {(message.rank, message.newest)}
    epoch = min(before.epoch, message.epoch) if before else message.epoch
    running = Running(message.job, message.size, message.number, epoch, contributed)
    others = tuple(r for r in state.running if r.job != message.job)
    if len({rank for rank, _ in contributed}) < message.size:
        kept = tuple(sorted((*others, running), key=lambda r: r.job))
        return Step(replace(state, running=kept))
    closed = _raised(state.closed, message.job, message.number)
    smallest = min(newest for _, newest in contributed)
    results = tuple(
        Result(message.job, rank, message.number, smallest) for rank in range(message.size)
    )
    return Step(replace(state, running=others, closed=closed), results)


def _is_stale(state: SwitchState, message: Contribution) -> bool:
    """Return whether the job is not admitted, the epoch or number is old, or ranks disagree."""
    floor = dict(state.floors).get(message.job)
    if floor is None or message.epoch < floor:
        return True
    if not 0 <= message.rank < message.size:
        return True
    closed = dict(state.closed).get(message.job, -1)
    own = [running for running in state.running if running.job == message.job]
    return message.number <= closed or any(
        message.number < running.number
        or (message.number == running.number and message.size != running.size)
        for running in own
    )


def _has_free_slot(state: SwitchState, job: str) -> bool:
    """Return whether the other jobs on the switch leave a slot."""
    return sum(running.job != job for running in state.running) < state.slots


def _refuse(state: SwitchState, message: Contribution, reason: RefusalReason) -> Step:
    return Step(state, (Refusal(message.job, message.rank, message.number, reason),))


def _evict(state: SwitchState, evicted: Iterable[Running]) -> Step:
    """End AllReduces without a result, and refuse their later contributions."""
    closed, messages = state.closed, []
    gone = set(evicted)
    for running in sorted(gone, key=lambda r: r.job):
        closed = _raised(closed, running.job, running.number)
        messages += [
            Refusal(running.job, rank, running.number, RefusalReason.EVICTED)
            for rank, _ in sorted(running.contributed)
        ]
    kept = tuple(running for running in state.running if running not in gone)
    return Step(replace(state, running=kept, closed=closed), tuple(messages))


def _raised(pairs: Pairs, job: str, value: int) -> Pairs:
    """Return the pairs with the job's value raised to at least ``value``."""
    found = dict(pairs)
    found[job] = max(found.get(job, value), value)
    return tuple(sorted(found.items()))
