"""State machine of the controller of the in-band agreement.

A change of decisions has two steps. The first epoch only revokes: each job may use what both its
old and its new table allow. When a rank of each revoked job has reported that the job has adopted
it, or after a time-out, the controller fences the switch. The second epoch grants, and is
published when the switch has confirmed the fence. No rank waits for any of this.

The state is small. A controller that writes it to its journal before it sends the messages of a
step can be restarted at any moment: that is the same as a pause in which messages are lost.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from presage.collectives.core.fencing import NO_FENCE, Fence, JobPlan, next_floors
from presage.collectives.core.messages import Admitted, Adopted, Hello, Message, ViewUpdate
from presage.collectives.core.view import JobView


class Stage(enum.IntEnum):
    """Progress of a change."""

    STABLE = 0
    REVOKING = 1  # waits for the adoption of the revocation
    FENCING = 2  # waits for the switch


class JobRecord(NamedTuple):
    """What the controller knows of a job.

    ``pending`` are the views that it may not have adopted yet, the newest last.
    """

    job: str
    size: int
    view: JobView
    pending: tuple[JobView, ...]


@dataclass(frozen=True, slots=True)
class InBandController:
    """State of the controller.

    Attributes
    ----------
    epoch : int
        Newest published epoch.
    jobs : tuple of JobRecord
        Known jobs, by id.
    fence : Fence
        What was last asked of the switch.
    stage : Stage
        Progress of the change.
    waiting : frozenset of str
        Revoked jobs that have not adopted the revocation.
    target : tuple of JobPlan
        Decisions that the change ends with.
    """

    epoch: int = 0
    jobs: tuple[JobRecord, ...] = ()
    fence: Fence = NO_FENCE
    stage: Stage = Stage.STABLE
    waiting: frozenset[str] = frozenset()
    target: tuple[JobPlan, ...] = ()

    @property
    def is_stable(self) -> bool:
        """Whether no change is under way."""
        return self.stage is Stage.STABLE

    @property
    def can_propose(self) -> bool:
        """Whether a new change may begin."""
        return self.is_stable


class Step(NamedTuple):
    """Next state and the messages to send."""

    state: InBandController
    messages: tuple[Message, ...] = ()


def propose(state: InBandController, plans: Iterable[JobPlan]) -> Step:
    """Begin a change to the decisions of ``plans``; jobs that are not among them leave.

    Raises
    ------
    ValueError
        If another change is under way.
    """
    if not state.is_stable:
        raise ValueError("a change of decisions is under way")
    target = tuple(sorted(plans, key=lambda plan: plan.job))
    planned = {plan.job: plan for plan in target}
    known = {record.job for record in state.jobs}
    staying = [record for record in state.jobs if record.job in planned]
    revoked = {r.job for r in staying if planned[r.job].view.revokes(r.view)}
    changing = replace(state, target=target, jobs=tuple(staying))
    if not revoked:
        is_same_roster = known == set(planned)
        return _publish_target(changing) if is_same_roster else _begin_fencing(changing)
    views = {
        record.job: record.view.intersection(planned[record.job].view)
        for record in staying
        if record.job in revoked
    }
    step = _publish(changing, views)
    waiting = replace(step.state, stage=Stage.REVOKING, waiting=frozenset(revoked))
    return Step(waiting, step.messages)


def receive(state: InBandController, message: Message) -> Step:
    """Handle a message of a rank or of the switch."""
    if isinstance(message, Adopted):
        return _adopted(state, message)
    if isinstance(message, Hello):
        fence, answer = state.fence.greeted(message)
        return Step(replace(state, fence=fence), answer)
    if isinstance(message, Admitted) and state.stage is Stage.FENCING:
        return _publish_target(state) if state.fence.is_confirmed_by(message) else Step(state)
    return Step(state)


def time_out(state: InBandController) -> Step:
    """Stop waiting for adoption: the fence alone keeps the revoked jobs from the switch."""
    return _begin_fencing(state) if state.stage is Stage.REVOKING else Step(state)


def resend(state: InBandController) -> Step:
    """Repeat all messages that may have been lost."""
    fence = (state.fence.admission,) if state.stage is Stage.FENCING else ()
    return Step(state, (*_updates(state.jobs), *fence))


def _adopted(state: InBandController, message: Adopted) -> Step:
    """Forget adopted views; one rank speaks for its job, since the minimum is over all ranks."""
    jobs = tuple(
        record._replace(pending=tuple(v for v in record.pending if v.epoch > message.epoch))
        if record.job == message.job
        else record
        for record in state.jobs
    )
    known = replace(state, jobs=jobs)
    if state.stage is not Stage.REVOKING or message.epoch < state.epoch:
        return Step(known)
    waiting = state.waiting - {message.job}
    known = replace(known, waiting=waiting)
    return Step(known) if waiting else _begin_fencing(known)


def _begin_fencing(state: InBandController) -> Step:
    is_revoking = state.stage is Stage.REVOKING
    revoked = {r.job for r in state.jobs if is_revoking and r.view.epoch == state.epoch}
    floors = next_floors(
        dict(state.fence.floors),
        jobs=[plan.job for plan in state.target],
        revoked=revoked,
        epoch=state.epoch,
    )
    fence = state.fence.with_floors(floors)
    fencing = replace(state, stage=Stage.FENCING, waiting=frozenset(), fence=fence)
    return Step(fencing, (fence.admission,))


def _publish_target(state: InBandController) -> Step:
    """Publish the granting epoch; jobs whose decisions do not change are not informed."""
    views = {record.job: record.view for record in state.jobs}
    changed = {
        plan.job: plan.view for plan in state.target if _differs(views.get(plan.job), plan.view)
    }
    return _publish(replace(state, stage=Stage.STABLE, target=()), changed, sizes=state.target)


def _differs(old: JobView | None, new: JobView) -> bool:
    """Return whether the window or an allowance changes, not only a reason."""
    if old is None or (old.first_number, len(old.decisions)) != (
        new.first_number,
        len(new.decisions),
    ):
        return True
    return old.revokes(new) or new.revokes(old)


def _publish(
    state: InBandController, views: dict[str, JobView], sizes: Iterable[JobPlan] = ()
) -> Step:
    """Give the next epoch to new decisions, and send them to the ranks of their jobs."""
    epoch = state.epoch + 1
    records = {record.job: record for record in state.jobs}
    for plan in sizes:
        records.setdefault(plan.job, JobRecord(plan.job, plan.size, JobView(0), ()))
    for job, view in views.items():
        fresh = replace(view, epoch=epoch)
        pending = (*records[job].pending, fresh)
        records[job] = records[job]._replace(view=fresh, pending=pending)
    jobs = tuple(records[job] for job in sorted(records))
    published = replace(state, epoch=epoch, jobs=jobs)
    return Step(published, _updates(record for record in jobs if record.job in views))


def _updates(records: Iterable[JobRecord]) -> tuple[Message, ...]:
    return tuple(
        ViewUpdate(record.job, rank, record.pending)
        for record in records
        if record.pending
        for rank in range(record.size)
    )
