"""The in-band agreement: the smallest epoch, and revocations before grants."""

from __future__ import annotations

import pytest

from presage.collectives.core import in_band_controller as machine
from presage.collectives.core.fencing import Fence, JobPlan
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.in_band_controller import InBandController, JobRecord, Stage
from presage.collectives.core.messages import (
    Admission,
    Admitted,
    Adopted,
    Hello,
    Member,
    ViewUpdate,
)
from presage.collectives.core.view import JobView, Reason

ME = Member("a", 0, 2)
USES, NOT = bytes([1, 1]), bytes([2, 2])


def plan(job, decisions):
    return JobPlan(job, 2, JobView(0, 0, decisions))


def a_controller(**options):
    jobs = tuple(
        JobRecord(job, 2, JobView(1, 0, decisions), ())
        for job, decisions in (("a", USES), ("b", NOT))
    )
    fence = Fence(1, 1, (("a", 0), ("b", 0)))
    return InBandController(epoch=1, jobs=jobs, fence=fence, **options)


def to_b():
    """Return the step that begins to move the switch from a to b."""
    return machine.propose(a_controller(), [plan("a", NOT), plan("b", USES)])


def updated(step):
    """Return the epochs sent to each job that a step informs."""
    updates = [message for message in step.messages if isinstance(message, ViewUpdate)]
    return {update.job: [view.epoch for view in update.views] for update in updates}


def receive(agreement, *views):
    update = ViewUpdate("a", 0, views)
    return agreement.receive(ME, update, started=0, is_on_switch=True)


def test_all_ranks_use_the_smallest_contributed_epoch():
    agreement, _ = receive(InBandAgreement(), JobView(1), JobView(2), JobView(3))
    agreement, messages = agreement.complete(ME, 0, 2)

    assert agreement.view.epoch == 2
    assert agreement.newest_epoch == 3
    assert messages == (Adopted("a", 0, 2),)
    assert agreement.complete(ME, 1, 2) == (agreement, ())


def test_a_repeated_update_is_answered_and_changes_nothing():
    agreement, first = receive(InBandAgreement(), JobView(1))

    assert first == ()
    assert receive(agreement, JobView(1)) == (agreement, (Adopted("a", 0, 0),))


def test_a_change_revokes_first_and_informs_only_the_jobs_that_change():
    step = to_b()

    assert step.state.stage is Stage.REVOKING
    assert len(step.messages) == 2
    assert updated(step) == {"a": [2]}
    revoked = step.state.jobs[0].view
    assert (revoked.epoch, revoked.reason(0)) == (2, Reason.REVOKED)


def test_a_grant_follows_the_fence_of_the_revocation():
    fencing = machine.receive(to_b().state, Adopted("a", 1, 2))
    assert fencing.messages == (Admission(1, 2, (("a", 2), ("b", 0))),)
    assert machine.receive(fencing.state, Admitted(1, 1)).messages == ()  # an older fence

    granted = machine.receive(fencing.state, Admitted(1, 2))
    assert granted.state.is_stable
    assert updated(granted) == {"b": [3]}


def test_i7_a_job_that_adopts_nothing_is_fenced_after_a_time_out():
    assert machine.time_out(to_b().state).state.stage is Stage.FENCING
    assert machine.time_out(a_controller()) == (a_controller(), ())


def test_a_change_that_only_grants_needs_no_fence():
    step = machine.propose(a_controller(), [plan("a", USES), plan("b", bytes([2, 1]))])

    assert step.state.is_stable
    assert updated(step) == {"b": [2]}


def test_a_dead_job_is_forgotten_by_the_switch():
    step = machine.propose(a_controller(), [plan("b", USES)])

    assert step.messages == (Admission(1, 2, (("b", 0),)),)
    granted = machine.receive(step.state, Admitted(1, 2))
    assert [record.job for record in granted.state.jobs] == ["b"]


def test_a_restarted_switch_is_admitted_again_and_a_late_hello_ignored():
    step = machine.receive(a_controller(), Hello(2))

    assert step.messages == (Admission(2, 2, (("a", 0), ("b", 0))),)
    assert machine.receive(step.state, Hello(1)).messages == ()


def test_resent_updates_have_all_views_that_may_not_have_been_adopted():
    fenced = machine.time_out(to_b().state).state
    granted = machine.receive(fenced, Admitted(1, 2)).state
    back = machine.propose(granted, [plan("a", USES), plan("b", NOT)]).state

    assert updated(machine.resend(back)) == {"a": [2], "b": [3, 4]}
    known = machine.receive(back, Adopted("b", 0, 3)).state
    assert updated(machine.resend(known))["b"] == [4]


def test_one_change_at_a_time():
    with pytest.raises(ValueError, match="under way"):
        machine.propose(to_b().state, [])
