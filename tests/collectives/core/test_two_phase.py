"""The two-phase agreement of requirement I6, with the guards of I7."""

from __future__ import annotations

import pytest

from presage.collectives.core import two_phase_controller as machine
from presage.collectives.core.fencing import Fence, JobPlan
from presage.collectives.core.messages import (
    Abort,
    Ack,
    Admission,
    Admitted,
    Done,
    Member,
    Outcome,
    Prepare,
    Status,
    Update,
)
from presage.collectives.core.two_phase import TwoPhaseAgreement
from presage.collectives.core.two_phase_controller import Stage, TwoPhaseController
from presage.collectives.core.view import JobView

ME = Member("a", 0, 2)
OLD, NEW = JobView(1, 0, bytes([1] * 4)), JobView(2, 0, bytes([2] * 4))
START = TwoPhaseAgreement(OLD, applied=1)


def receive(agreement, message, started=0, is_on_switch=False):
    return agreement.receive(ME, message, started=started, is_on_switch=is_on_switch)


def locked():
    return receive(START, Prepare("a", 0, 2))[0]


def status(outcome, view=None, number=0, tag=2):
    return Status("a", 1, 0, tag, number, outcome, view)


def a_controller():
    jobs = (JobPlan("a", 2, OLD),)
    return TwoPhaseController(tag=1, jobs=jobs, fence=Fence(1, 1, (("a", 0),)))


def preparing():
    return machine.propose(a_controller(), [JobPlan("a", 2, NEW)])


def test_i6_a_round_locks_checks_updates_and_unlocks():
    step = preparing()
    assert step.messages == (Prepare("a", 0, 2), Prepare("a", 1, 2))
    step = machine.receive(step.state, Ack("a", 0, 2, 7))
    step = machine.receive(step.state, Ack("a", 1, 2, 7))
    assert step.messages == (Admission(1, 2, (("a", 2),)),)
    step = machine.receive(step.state, Admitted(1, 2))
    assert step.messages == (Update("a", 0, 2, NEW), Update("a", 1, 2, NEW))
    state = machine.receive(step.state, Done("a", 0, 2)).state
    assert not state.is_stable
    assert machine.receive(state, Done("a", 1, 2)).state.is_stable


def test_i6_unequal_numbers_abort_the_round_and_a_new_one_has_a_new_tag():
    step = machine.receive(preparing().state, Ack("a", 0, 2, 7))
    step = machine.receive(step.state, Ack("a", 1, 2, 8))

    assert step.state.stage is Stage.ABORTING
    assert step.messages == (Abort("a", 0, 2), Abort("a", 1, 2))
    assert machine.propose(step.state, [JobPlan("a", 2, NEW)]).messages[0] == Prepare("a", 0, 3)


def test_i7_an_abort_after_the_fence_restores_the_floors():
    state = preparing().state
    for rank in range(2):
        state = machine.receive(state, Ack("a", rank, 2, 7)).state

    assert Admission(1, 3, (("a", 0),)) in machine.time_out(state).messages


def test_i6_a_locked_rank_starts_nothing_and_an_update_unlocks_it():
    agreement, messages = receive(START, Prepare("a", 0, 2), started=5)
    assert messages == (Ack("a", 0, 2, 5),)
    assert not agreement.can_start

    agreement, messages = receive(agreement, Update("a", 0, 2, NEW))
    assert agreement.can_start
    assert agreement.view == NEW
    assert messages == (Done("a", 0, 2),)
    assert receive(agreement, Update("a", 0, 2, NEW))[1] == (Done("a", 0, 2),)  # a duplicate


def test_i7_the_acknowledgement_waits_for_the_end_of_an_allreduce_on_the_switch():
    agreement, messages = receive(START, Prepare("a", 0, 2), started=5, is_on_switch=True)
    assert messages == ()

    assert agreement.complete(ME, 5, 1)[1] == (Ack("a", 0, 2, 5),)


def test_i7_an_abort_unlocks_and_late_messages_of_its_tag_are_ignored():
    agreement, _ = receive(locked(), Abort("a", 0, 2))

    assert agreement.can_start
    assert agreement.view == OLD
    assert receive(agreement, Prepare("a", 0, 2)) == (agreement, ())
    assert receive(agreement, Update("a", 0, 2, NEW)) == (agreement, (Done("a", 0, 2),))


def test_i7_before_the_acknowledgement_a_rank_may_unlock_alone():
    waiting, _ = receive(START, Prepare("a", 0, 2), is_on_switch=True)
    agreement, messages = waiting.time_out(ME, started=0)

    assert agreement.can_start
    assert agreement.aborted == 2
    assert messages == ()


def test_i7_after_the_acknowledgement_a_rank_asks_its_peers():
    agreement, messages = locked().time_out(ME, started=0)

    assert not agreement.can_start
    assert messages == (Status("a", 0, 1, 2, 0, Outcome.UNCERTAIN, None),)
    assert receive(agreement, Update("a", 0, 2, NEW)) == (agreement, ())  # its part is fixed


@pytest.mark.parametrize(
    "answer, allowed",
    [
        (status(Outcome.APPLIED, NEW), [False, False, False]),
        (status(Outcome.ABORTED), [True, True, True]),
        (status(Outcome.UNCERTAIN, number=1), [True, True, False]),
    ],
)
def test_i7_what_the_peers_know_decides_a_round_that_the_controller_left(answer, allowed):
    asking, _ = locked().time_out(ME, started=0)
    agreement, messages = receive(asking, answer)

    assert agreement.can_start
    assert messages == (Done("a", 0, 2),)
    assert [agreement.view.is_allowed(number) for number in range(3)] == allowed


def test_i7_a_rank_answers_by_its_state():
    question = status(Outcome.UNCERTAIN)
    applied, _ = receive(locked(), Update("a", 0, 2, NEW))

    assert receive(applied, question)[1] == (Status("a", 0, 1, 2, 0, Outcome.APPLIED, NEW),)
    never, answer = receive(START, question)
    assert answer == (Status("a", 0, 1, 2, 0, Outcome.ABORTED, None),)
    assert receive(never, Prepare("a", 0, 2)) == (never, ())


def test_i7_the_controller_does_not_wait_for_ranks_of_a_job_that_has_left():
    state = preparing().state
    assert machine.forget(state, "a").state == state  # the round is aborted instead
    for rank in range(2):
        state = machine.receive(state, Ack("a", rank, 2, 7)).state
    updating = machine.receive(state, Admitted(1, 2)).state

    assert machine.forget(updating, "b").state == updating
    assert machine.forget(updating, "a").state.is_stable


def test_i7_a_round_without_jobs_takes_the_last_one_from_the_switch():
    step = machine.propose(a_controller(), [])
    assert step.messages == (Admission(1, 2, ()),)

    state = machine.receive(step.state, Admitted(1, 2)).state
    assert state.is_stable
    assert state.jobs == ()


def test_one_round_at_a_time():
    with pytest.raises(ValueError, match="under way"):
        machine.propose(preparing().state, [])


def test_resent_messages_are_those_that_were_not_answered():
    state = machine.receive(preparing().state, Ack("a", 0, 2, 7)).state

    assert machine.resend(state).messages == (Prepare("a", 1, 2),)
