"""State machine of the controller of the two-phase agreement (requirement I6).

One round: prepare all ranks, wait for their locks, check that the ranks of each job have started
the same AllReduce, fence the switch, update, and wait until all have applied the update. A round
that does not get so far is aborted, and the next one has a new tag.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from presage.collectives.core.fencing import NO_FENCE, Fence, JobPlan, next_floors
from presage.collectives.core.messages import (
    Abort,
    Ack,
    Admitted,
    Done,
    Hello,
    Message,
    Prepare,
    Update,
)


class Stage(enum.IntEnum):
    """Progress of a round."""

    STABLE = 0
    PREPARING = 1  # waits for locks
    FENCING = 2  # waits for the switch
    UPDATING = 3  # waits until all ranks have applied the update
    ABORTING = 4  # sends aborts to the ranks; the next round may begin


@dataclass(frozen=True, slots=True)
class TwoPhaseController:
    """State of the controller.

    Attributes
    ----------
    tag : int
        Tag of the newest round, which is also the epoch of its view.
    jobs : tuple of JobPlan
        Decisions in force.
    target : tuple of JobPlan
        Decisions of the round.
    stage : Stage
        Progress of the round.
    acks : frozenset of Ack
        Locks of the round.
    done : frozenset of (str, int)
        Ranks at which the round has ended.
    fence : Fence
        What was last asked of the switch.
    floors : tuple of (str, int)
        Floors in force before the round, restored if it is aborted.
    """

    tag: int = 0
    jobs: tuple[JobPlan, ...] = ()
    target: tuple[JobPlan, ...] = ()
    stage: Stage = Stage.STABLE
    acks: frozenset[Ack] = frozenset()
    done: frozenset[tuple[str, int]] = frozenset()
    fence: Fence = NO_FENCE
    floors: tuple[tuple[str, int], ...] = ()

    @property
    def is_stable(self) -> bool:
        """Whether no round is under way, and the last one has ended."""
        return self.stage is Stage.STABLE

    @property
    def can_propose(self) -> bool:
        """Whether a round may begin: a first one, or another try after an abort."""
        return self.stage in (Stage.STABLE, Stage.ABORTING)


class Step(NamedTuple):
    """Next state and the messages to send."""

    state: TwoPhaseController
    messages: tuple[Message, ...] = ()


def propose(state: TwoPhaseController, plans: Iterable[JobPlan]) -> Step:
    """Begin a round with a new tag; jobs that are not among the plans leave.

    Raises
    ------
    ValueError
        If another round is under way.
    """
    if not state.can_propose:
        raise ValueError("a round is under way")
    target = tuple(sorted(plans, key=lambda plan: plan.job))
    round_ = replace(
        state,
        tag=state.tag + 1,
        target=target,
        stage=Stage.PREPARING,
        acks=frozenset(),
        done=frozenset(),
    )
    return Step(round_, _outstanding(round_)) if target else _begin_fencing(round_)


def receive(state: TwoPhaseController, message: Message) -> Step:
    """Handle a message of a rank or of the switch."""
    if isinstance(message, Ack):
        return _acknowledged(state, message)
    if isinstance(message, Done):
        return _done(state, message)
    if isinstance(message, Hello):
        fence, answer = state.fence.greeted(message)
        return Step(replace(state, fence=fence), answer)
    if isinstance(message, Admitted) and state.stage is Stage.FENCING:
        return _update(state) if state.fence.is_confirmed_by(message) else Step(state)
    return Step(state)


def time_out(state: TwoPhaseController) -> Step:
    """Abort a round whose locks or fence take too long."""
    return _abort(state) if state.stage in (Stage.PREPARING, Stage.FENCING) else Step(state)


def forget(state: TwoPhaseController, job: str) -> Step:
    """Stop waiting until the ranks of a job have applied the update: it has ended.

    Only of a job whose ranks do not take part in a later round: a rank that lives takes that as a
    sign that this round was aborted.
    """
    if state.stage is not Stage.UPDATING:
        return Step(state)
    own = frozenset(place for place in _members(state) if place[0] == job)
    return Step(_settled(replace(state, done=state.done | own)))


def resend(state: TwoPhaseController) -> Step:
    """Repeat all messages that may have been lost."""
    return Step(state, _outstanding(state))


def _acknowledged(state: TwoPhaseController, message: Ack) -> Step:
    if state.stage is not Stage.PREPARING or message.tag != state.tag:
        return Step(state)
    known = replace(state, acks=state.acks | {message})
    if {(ack.job, ack.rank) for ack in known.acks} != set(_members(known)):
        return Step(known)
    return _begin_fencing(known) if _has_equal_numbers(known) else _abort(known)


def _has_equal_numbers(state: TwoPhaseController) -> bool:
    """Return whether the ranks of each job have started the same AllReduce."""
    positions = {(ack.job, ack.number) for ack in state.acks}
    return len(positions) == len({ack.job for ack in state.acks})


def _begin_fencing(state: TwoPhaseController) -> Step:
    """Fence the switch if a job loses the use of it or the set of jobs changes."""
    old = {plan.job: plan.view for plan in state.jobs}
    new = {plan.job: plan.view for plan in state.target}
    revoked = {job for job in new if job in old and new[job].revokes(old[job])}
    if not revoked and set(old) == set(new):
        return _update(state)
    floors = next_floors(dict(state.fence.floors), jobs=list(new), revoked=revoked, epoch=state.tag)
    fence = state.fence.with_floors(floors)
    fencing = replace(state, stage=Stage.FENCING, floors=state.fence.floors, fence=fence)
    return Step(fencing, (fence.admission,))


def _update(state: TwoPhaseController) -> Step:
    jobs = tuple(plan._replace(view=replace(plan.view, epoch=state.tag)) for plan in state.target)
    updating = replace(state, stage=Stage.UPDATING, jobs=jobs, acks=frozenset())
    return Step(_settled(updating), _outstanding(updating))


def _done(state: TwoPhaseController, message: Done) -> Step:
    if message.tag != state.tag or state.stage is not Stage.UPDATING:
        return Step(state)
    return Step(_settled(replace(state, done=state.done | {(message.job, message.rank)})))


def _settled(state: TwoPhaseController) -> TwoPhaseController:
    """Return the state after a round whose update all ranks have applied, else the same."""
    if state.done != set(_members(state)):
        return state
    return replace(state, stage=Stage.STABLE, done=frozenset(), target=())


def _abort(state: TwoPhaseController) -> Step:
    """Unlock the ranks, and restore the floors of the views that stay in force."""
    aborting = replace(state, stage=Stage.ABORTING, acks=frozenset())
    if state.stage is not Stage.FENCING:
        return Step(aborting, _outstanding(aborting))
    fence = state.fence.with_floors(dict(state.floors))
    return Step(replace(aborting, fence=fence), (*_outstanding(aborting), fence.admission))


def _members(state: TwoPhaseController) -> Iterator[tuple[str, int]]:
    for plan in state.target:
        for rank in range(plan.size):
            yield plan.job, rank


def _outstanding(state: TwoPhaseController) -> tuple[Message, ...]:
    """Return the messages of the current stage to the ranks that have not answered."""
    if state.stage is Stage.FENCING:
        return (state.fence.admission,)
    locked = {(ack.job, ack.rank) for ack in state.acks}
    messages: list[Message] = []
    for plan in state.target:
        view = replace(plan.view, epoch=state.tag)
        for rank in range(plan.size):
            place = (plan.job, rank)
            if state.stage is Stage.PREPARING and place not in locked:
                messages.append(Prepare(*place, state.tag))
            elif state.stage is Stage.UPDATING and place not in state.done:
                messages.append(Update(*place, state.tag, view))
            elif state.stage is Stage.ABORTING:
                messages.append(Abort(*place, state.tag))
    return tuple(messages)
