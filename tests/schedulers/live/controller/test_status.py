"""Tests of status messages in lists and explanations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.status_messages import job_status, redact_status
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.test_core import V100, World, ended, task

MIB = 2**20
MOST_LISTED = 20_000
MOST_LIST_BYTES = 64 * MIB


def displayed_job(submitted, **options):
    world = World()
    world.write(world.core.submit([submitted], 0.0, 0.0)[0])
    job = world.core.state.jobs[submitted.job.job_id]
    return job_status(world.core, job, 0.0, **options).job


def test_a_long_command_is_truncated_in_lists_and_complete_in_explanations():
    command = ("python", "-c", "x = 1\n" * 200_000, "--last")
    submitted = SubmittedJob(Job("job", 0.0), command)

    listed = list(displayed_job(submitted).command)
    assert listed[:2] == ["python", "-c"]
    assert listed[2].startswith("x = 1\nx = 1")
    assert listed[3:] == ["…"]
    assert list(displayed_job(submitted, full=True).command) == list(command)
    short = SubmittedJob(Job("job", 0.0), ("python", "train.py", "", "--epochs=3"))
    assert list(displayed_job(short).command) == list(short.command)


@pytest.mark.parametrize("field", ["command", "folder", "user", "model", "kinds", "words"])
def test_a_full_list_of_jobs_with_long_fields_fits_in_a_message(field):
    text = "é" * MIB
    of = dict.fromkeys(("folder", "user", "model"), "") | {field: text}
    kinds = (text,) if field == "kinds" else ()
    command = {"command": (text,), "words": ("a",) + ("",) * MIB}.get(field, ("train",))
    job = Job("job", 0.0, user=of["user"], model=of["model"], kinds=kinds)
    submitted = SubmittedJob(job, command, of["folder"])

    assert displayed_job(submitted).ByteSize() * MOST_LISTED < MOST_LIST_BYTES


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_truncation_removes_only_the_end_of_a_command(words):
    command = ("train", *words, "é" * 1000, "é" * 1000)
    listed = list(displayed_job(SubmittedJob(Job("job", 0.0), command)).command)

    *kept, last, ellipsis = listed
    assert ellipsis == "…"
    assert list(command[: len(kept)]) == kept
    assert command[len(kept)].startswith(last)


def status(world, name="job"):
    return job_status(world.core, world.core.state.jobs[name], world.now_s)


def placed(*, latency_sensitive=False):
    world = World()
    world.report("a", [V100])
    world.submit("job", model="300", latency_sensitive=latency_sensitive)
    world.decide()
    return world


def test_remaining_time_is_the_agents_estimate_or_else_predicted():
    world = placed()
    world.report("a", [V100], tasks=[task("job", ran_s=40.0, done=0.4)])
    assert status(world).remaining_s == pytest.approx(60.0)

    world.report("a", [V100], tasks=[task("job", ran_s=40.0, done=0.4, remaining_s=90.0)])
    assert status(world).remaining_s == 90.0
    world.report("a", [V100], tasks=[task("job", ran_s=40.0, done=1.0, remaining_s=0.0)])
    assert status(world).remaining_s == 0.0


def test_estimated_progress_is_shown_and_used_but_not_stored():
    world = placed()
    world.report("a", [V100], tasks=[task("job", ran_s=40.0, done=0.4, done_estimated=True)])
    shown = status(world)
    assert (shown.done, shown.done_estimated) == (pytest.approx(0.4), True)
    assert shown.remaining_s == pytest.approx(60.0)
    view = world.core.view(world.now_s)
    assert view.state(world.now_s).progress("job") == pytest.approx(0.4)

    over = ended("job", lost=True, description="its node was shut down")
    over.done, over.done_estimated = 0.9, True
    world.report("a", [V100], tasks=[over])
    assert (status(world).done, status(world).done_estimated) == (0.0, False)
    assert world.rows[-1]["type"] == "Requeued"
    assert world.rows[-1]["saved"] == 0.0
    world.decide()
    (order,) = world.core.commands("a").tasks
    assert order.done == 0.0


def test_a_job_without_a_forecast_is_not_in_domain():
    world = World()
    world.report("a", [V100] * 2)
    world.submit("told", model="300")
    world.submit("missing")
    world.decide()

    told, missing = (
        world.core.state.jobs[name].prediction_messages[0] for name in ("told", "missing")
    )
    assert (told.is_predicted, told.in_domain) == (True, True)
    assert (missing.is_predicted, missing.in_domain) == (False, False)


@pytest.mark.parametrize(("guessed", "done"), [(True, 0.0), (False, 0.5)])
def test_other_users_see_no_forecast_of_a_job(guessed, done):
    job = pb.Job(job_id="a", user="ann", model="secret")
    status = pb.JobStatus(job=job, remaining_s=50, done=0.5, done_estimated=guessed, elapsed_s=50)

    seen = redact_status(status)

    assert (seen.remaining_s, seen.done, seen.done_estimated) == (0, done, False)
    assert (seen.elapsed_s, seen.job.model) == (50, "")
