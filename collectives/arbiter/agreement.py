"""Controller of the agreement that an arbiter uses, by one interface, and its text in the journal.

The machines are those of ``collectives.core``. This module adds what a process needs around them:
another start than the first one, and jobs that come back with views of an earlier membership.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias

from presage.collectives.core import in_band_controller, two_phase_controller
from presage.collectives.core.fencing import Fence, JobPlan
from presage.collectives.core.in_band_controller import InBandController, JobRecord
from presage.collectives.core.messages import Ack, Message
from presage.collectives.core.two_phase_controller import TwoPhaseController
from presage.collectives.core.view import JobView

AgreementName = Literal["in_band", "two_phase"]
Controller: TypeAlias = InBandController | TwoPhaseController


class Step(NamedTuple):
    """Next state and the messages to send."""

    state: Controller
    messages: tuple[Message, ...]


def new_controller(agreement: AgreementName) -> Controller:
    """Return the controller of a domain without jobs."""
    return InBandController() if agreement == "in_band" else TwoPhaseController()


def propose(state: Controller, plans: Iterable[JobPlan], joining: Collection[str]) -> Step:
    """Begin a change; switches will refuse all earlier epochs of jobs that join.

    Such a job can have views of an earlier membership, which the plan does not count.
    """
    floors = dict(state.fence.floors) | dict.fromkeys(joining, newest_epoch(state) + 1)
    fence = replace(state.fence, floors=tuple(sorted(floors.items())))
    jobs = tuple(job for job in state.jobs if job.job not in joining)
    joined = replace(state, fence=fence, jobs=jobs)  # type: ignore[arg-type]
    return Step(*_machine(state).propose(joined, plans))


def receive(state: Controller, message: Message) -> Step:
    """Handle a message of a rank or of the switches."""
    return Step(*_machine(state).receive(state, message))


def time_out(state: Controller) -> Step:
    """Stop waiting for ranks."""
    return Step(*_machine(state).time_out(state))


def forget(state: Controller, job: str) -> Step:
    """Stop waiting for the ranks of a job that has ended; in-band nothing waits for long."""
    if isinstance(state, InBandController):
        return Step(state, ())
    return Step(*two_phase_controller.forget(state, job))


def resend(state: Controller) -> Step:
    """Repeat all messages that may have been lost."""
    return Step(*_machine(state).resend(state))


def newest_epoch(state: Controller) -> int:
    """Return the newest epoch that ranks or switches can have received."""
    return state.epoch if isinstance(state, InBandController) else state.tag


def raise_epoch(state: Controller, epoch: int) -> Controller:
    """Return the state with an epoch of at least this one: a journal was lost."""
    if epoch <= newest_epoch(state):
        return state
    if isinstance(state, InBandController):
        return replace(state, epoch=epoch)
    return replace(state, tag=epoch)


def raise_token(state: Controller, token: int) -> Controller:
    """Return the state with a token of admissions of at least this one."""
    fence = replace(state.fence, token=max(token, state.fence.token))
    return replace(state, fence=fence)


def withdraw_grants(state: Controller, jobs: Collection[str]) -> Controller:
    """Return the state with a change that ends without grants for these jobs."""
    target = tuple(
        plan._replace(view=plan.view.intersection(JobView(0))) if plan.job in jobs else plan
        for plan in state.target
    )
    return replace(state, target=target)


def views_in_force(state: Controller) -> dict[str, JobView]:
    """Return the newest decisions of each job."""
    return {job.job: job.view for job in state.jobs}


def pending_views(state: Controller) -> dict[str, tuple[JobView, ...]]:
    """Return the views that each job may not have adopted; none with two phases."""
    if isinstance(state, InBandController):
        return {job.job: job.pending for job in state.jobs}
    return {}


def to_json(state: Controller) -> str:
    """Return a state as text."""
    content: dict[str, Any] = {
        "fence": [state.fence.incarnation, state.fence.token, list(state.fence.floors)],
        "stage": int(state.stage),
        "target": [_plan_row(plan) for plan in state.target],
    }
    if isinstance(state, InBandController):
        jobs = [[j.job, j.size, view_to_row(j.view), [view_to_row(v) for v in j.pending]]
                for j in state.jobs]  # fmt: skip
        content |= {
            "agreement": "in_band",
            "epoch": state.epoch,
            "jobs": jobs,
            "waiting": sorted(state.waiting),
        }
    else:
        content |= {
            "agreement": "two_phase",
            "tag": state.tag,
            "jobs": [_plan_row(plan) for plan in state.jobs],
            "acks": sorted(state.acks),
            "done": sorted(state.done),
            "floors": list(state.floors),
        }
    return json.dumps(content, separators=(",", ":"))


def from_json(text: str) -> Controller:
    """Return the state in a text of :func:`to_json`; raise ValueError if it is none."""
    try:
        return _from_content(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the state of the controller is incomplete: {error}") from error


def _from_content(content: Mapping[str, Any]) -> Controller:
    incarnation, token, floors = content["fence"]
    fence = Fence(incarnation, token, _pairs(floors))
    target = tuple(_plan_of(row) for row in content["target"])
    if content["agreement"] == "in_band":
        jobs = tuple(
            JobRecord(name, size, view_of_row(view), tuple(view_of_row(v) for v in pending))
            for name, size, view, pending in content["jobs"]
        )
        return InBandController(
            epoch=content["epoch"],
            jobs=jobs,
            fence=fence,
            stage=in_band_controller.Stage(content["stage"]),
            waiting=frozenset(content["waiting"]),
            target=target,
        )
    return TwoPhaseController(
        tag=content["tag"],
        jobs=tuple(_plan_of(row) for row in content["jobs"]),
        target=target,
        stage=two_phase_controller.Stage(content["stage"]),
        acks=frozenset(Ack(*row) for row in content["acks"]),
        done=frozenset((job, rank) for job, rank in content["done"]),
        fence=fence,
        floors=_pairs(content["floors"]),
    )


def _machine(state: Controller) -> ModuleType:
    return in_band_controller if isinstance(state, InBandController) else two_phase_controller


def _pairs(rows: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple((job, floor) for job, floor in rows)


def view_to_row(view: JobView) -> list[Any]:
    """Return a table as a row of JSON."""
    return [view.epoch, view.first_number, view.decisions.hex()]


def view_of_row(row: list[Any]) -> JobView:
    """Return the table in a row of JSON."""
    epoch, first_number, decisions = row
    return JobView(epoch, first_number, bytes.fromhex(decisions))


def _plan_row(plan: JobPlan) -> list[Any]:
    return [plan.job, plan.size, view_to_row(plan.view)]


def _plan_of(row: list[Any]) -> JobPlan:
    job, size, view = row
    return JobPlan(job, size, view_of_row(view))
