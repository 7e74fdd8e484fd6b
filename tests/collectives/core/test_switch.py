"""The switch: slots, old epochs, restarts, leases."""

from __future__ import annotations

import pytest

from presage.collectives.core import switch as machine
from presage.collectives.core.messages import (
    Admission,
    Admitted,
    Contribution,
    Hello,
    Refusal,
    RefusalReason,
    Result,
)
from presage.collectives.core.switch import SwitchState

READY = SwitchState(slots=1, token=1, floors=(("a", 2), ("b", 2)))


def contribution(job="a", rank=0, number=0, epoch=2, newest=2):
    return Contribution(job, rank, 2, number, epoch, newest)


def after(*messages, state=READY):
    for message in messages:
        step = machine.receive(state, message)
        state = step.state
    return step


def refusals(step):
    return [message.reason for message in step.messages if isinstance(message, Refusal)]


def test_a_result_has_the_smallest_of_the_contributed_epochs():
    step = after(contribution(rank=0, newest=5), contribution(rank=1, newest=4))

    assert step.messages == (Result("a", 0, 0, 4), Result("a", 1, 0, 4))
    assert step.state.running == ()


def test_i1_never_more_jobs_than_slots():
    assert refusals(after(contribution(), contribution("b"))) == [RefusalReason.BUSY]
    two = SwitchState(slots=2, token=1, floors=READY.floors)
    assert refusals(after(contribution(), contribution("b"), state=two)) == []


def test_what_was_refused_to_one_rank_is_refused_to_all():
    step = after(
        contribution("b"), contribution("a", 0), contribution("b", 1), contribution("a", 1)
    )

    assert refusals(step) == [RefusalReason.STALE]


@pytest.mark.parametrize("epoch, job", [(1, "a"), (9, "unknown")])
def test_i7_old_epochs_and_unknown_jobs_are_refused(epoch, job):
    assert refusals(after(contribution(job, epoch=epoch))) == [RefusalReason.STALE]


@pytest.mark.parametrize("change", [{"size": 3}, {"rank": 2}, {"rank": -1}])
def test_ranks_that_disagree_on_the_size_of_the_job_are_refused(change):
    other = contribution(rank=1)._replace(**change)

    assert refusals(after(contribution(), other)) == [RefusalReason.STALE]


def test_a_duplicate_does_not_count_twice():
    assert after(contribution(), contribution()).messages == ()


def test_a_late_contribution_does_not_begin_an_ended_allreduce_again():
    step = after(contribution(rank=0), contribution(rank=1), contribution(rank=0))

    assert refusals(step) == [RefusalReason.STALE]
    assert step.state.running == ()


def test_a_job_that_continues_abandons_its_older_allreduce():
    step = after(contribution(number=0), contribution(number=1))

    assert [running.number for running in step.state.running] == [1]
    assert refusals(after(contribution(number=0, rank=1), state=step.state)) == [
        RefusalReason.STALE
    ]


def test_i7_an_admission_evicts_old_epochs_and_leaving_jobs():
    step = after(contribution(), Admission(1, 2, (("b", 2),)))

    assert step.messages == (Refusal("a", 0, 0, RefusalReason.EVICTED), Admitted(1, 2))
    assert step.state.running == step.state.closed == ()  # the job is forgotten


@pytest.mark.parametrize("incarnation, token", [(1, 0), (0, 9), (2, 9)])
def test_i7_outdated_and_foreign_admissions_are_ignored(incarnation, token):
    assert after(Admission(incarnation, token, ())) == (READY, ())


def test_i7_a_restarted_switch_admits_nothing_until_the_controller_answers():
    state, messages = machine.restart(READY)

    assert messages == (Hello(2),)
    assert refusals(after(contribution(epoch=9), state=state)) == [RefusalReason.STALE]
    admitted = after(Admission(2, 7, READY.floors), state=state)
    assert admitted.messages == (Admitted(2, 7),)
    assert refusals(after(contribution(), state=admitted.state)) == []


def test_i7_the_lease_of_a_silent_job_ends():
    step = machine.expire(after(contribution()).state, "a")

    assert refusals(step) == [RefusalReason.EVICTED]
    assert refusals(after(contribution("b"), state=step.state)) == []
