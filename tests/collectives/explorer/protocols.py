"""What the explorer has to know of each of the two agreements."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from presage.collectives.core import in_band_controller, switch, two_phase_controller
from presage.collectives.core import messages as m
from presage.collectives.core.fencing import Fence
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.in_band_controller import InBandController, JobRecord
from presage.collectives.core.rank import Agreement, Phase, RankState
from presage.collectives.core.switch import SwitchState
from presage.collectives.core.two_phase import TwoPhaseAgreement
from presage.collectives.core.two_phase_controller import TwoPhaseController
from presage.collectives.core.view import JobView
from tests.collectives.explorer.configuration import Configuration, decisions, job_plans

CONTROLLERS: dict[str, ModuleType] = {
    "in_band": in_band_controller,
    "two_phase": two_phase_controller,
}


def initial_agreement(config: Configuration, job: str) -> Agreement:
    """Return the agreement of a rank at the start."""
    view = JobView(1, 0, decisions(config.initial[job])) if config.initial else JobView(0)
    is_in_band = config.protocol == "in_band"
    return InBandAgreement((view,)) if is_in_band else TwoPhaseAgreement(view, applied=view.epoch)


def initial_switch(config: Configuration) -> SwitchState:
    """Return the switch at the start; the views of the start have revoked some jobs."""
    floors = tuple((job, int("I" not in table)) for job, table in sorted(config.initial.items()))
    return SwitchState(config.slots, 1, 1 if floors else 0, floors)


def initial_controller(config: Configuration) -> Any:
    """Return the controller at the start."""
    start = initial_switch(config)
    if not config.initial:
        return InBandController() if config.protocol == "in_band" else TwoPhaseController()
    fence = Fence(1, start.token, start.floors)
    plans = job_plans(config.initial, config.sizes)
    if config.protocol == "two_phase":
        jobs = tuple(plan._replace(view=replace(plan.view, epoch=1)) for plan in plans)
        return TwoPhaseController(tag=1, jobs=jobs, fence=fence)
    records = tuple(
        JobRecord(plan.job, plan.size, replace(plan.view, epoch=1), ()) for plan in plans
    )
    return InBandController(epoch=1, jobs=records, fence=fence)


def is_obsolete(receiver: Any, message: m.Message) -> bool:
    """Return whether a message will never have an effect, whatever happens before it arrives.

    Such messages are removed at once, which merges states that differ in nothing else.
    """
    state: Any = getattr(receiver, "state", None)
    return bool(_is_without_effect(receiver, state, message))


def _is_without_effect(receiver: Any, state: Any, message: m.Message) -> Any:
    match message:
        case m.Result(number=number):
            is_decided = state.number == number and state.phase is Phase.RING
            return is_decided or state.number > number
        case m.Refusal(number=number):
            is_failed = state.number == number and state.phase in (Phase.RING, Phase.VOTING)
            return is_failed or state.number > number
        case m.Vote():
            return message.number < state.number and not _has_answer(state, message)
        case m.Status(tag=tag) if tag != state.agreement.locked:
            return tag in state.agreement.exchanged or message.outcome is not m.Outcome.UNCERTAIN
        case m.Prepare(tag=tag):
            agreement = state.agreement
            return tag <= max(agreement.aborted, agreement.applied) or tag < agreement.locked
        case m.Adopted():
            return _is_adoption_known(state, message)
        case m.Ack(tag=tag):
            is_preparing = state.stage is two_phase_controller.Stage.PREPARING
            return tag < state.tag or not is_preparing
        case m.Done(tag=tag):
            return tag < state.tag or state.stage is not two_phase_controller.Stage.UPDATING
        case m.Abort(tag=tag):
            return tag <= state.agreement.aborted and tag != state.agreement.locked
        case m.Admitted(token=token):
            return token < state.fence.token or state.stage.name != "FENCING"
        case m.Admission():
            return not switch.receive(receiver, message)[1]  # not even a confirmation
    return False


def _has_answer(state: RankState, message: m.Vote) -> bool:
    is_previous = message.number == state.number - 1
    return is_previous and message.min_epoch is None and state.last_min_epoch is not None


def _is_adoption_known(state: InBandController, message: m.Adopted) -> bool:
    records = [record for record in state.jobs if record.job == message.job]
    trims = any(view.epoch <= message.epoch for record in records for view in record.pending)
    is_revoking = state.stage is in_band_controller.Stage.REVOKING
    return not trims and not (is_revoking and message.epoch >= state.epoch)
