from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.watch.slurm_job import ENDED
from presage.schedulers.slurm.watch.time_limits import extensions, restorations
from tests.schedulers.slurm.jobs import NOTE, slurm_job

LEAD = 10


def extended(job):
    return [(minutes, note.set_minutes) for _, minutes, note in extensions([job], LEAD)]


def test_a_job_far_from_its_limit_is_unchanged():
    assert extended(slurm_job(used_s=20 * 60)) == []


def test_a_job_near_its_limit_gets_twice_the_lead():
    assert extended(slurm_job(used_s=20 * 60 + 1)) == [(41, 41)]


def test_a_long_job_gets_a_quarter_more():
    note = replace(NOTE, set_minutes=400)

    assert extended(slurm_job(used_s=395 * 60, note=note)) == [(494, 494)]


def test_an_extension_ends_at_the_users_own_limit_and_then_none_follows():
    note = replace(NOTE, set_minutes=590)
    job = slurm_job(used_s=585 * 60, note=note)

    ((_, minutes, new),) = extensions([job], LEAD)

    assert minutes == 600
    assert list(extensions([replace(job, limit_minutes=600, note=new)], LEAD)) == []


def test_a_job_without_a_limit_of_its_own_is_extended_for_ever():
    job = slurm_job(used_s=10**6, note=JobNote(own_minutes=None, set_minutes=30))

    assert extended(job) == [(20834, 20834)]


@pytest.mark.parametrize(
    "job",
    [
        slurm_job(used_s=29 * 60, limit_minutes=31),  # scontrol update TimeLimit
        slurm_job(used_s=29 * 60, note=replace(NOTE, set_minutes=None), limit_minutes=30),
        slurm_job(used_s=29 * 60, state="PENDING"),
        slurm_job(used_s=29 * 60, state="COMPLETING"),
    ],
)
def test_jobs_that_are_not_managed_are_unchanged(job):
    assert extended(job) == []


def test_restoring_gives_pending_and_running_jobs_their_own_limit():
    jobs = [
        slurm_job(1, state="PENDING"),
        slurm_job(2),
        slurm_job(3, limit_minutes=29),
        *(slurm_job(10 + i, state=state) for i, state in enumerate(ENDED)),
    ]

    assert [
        (job.job_id, minutes, note.set_minutes) for job, minutes, note in restorations(jobs)
    ] == [
        (1, 600, None),
        (2, 600, None),
    ]


@given(
    own=st.one_of(st.none(), st.integers(1, 10**5)),
    set_minutes=st.integers(1, 10**5),
    used_s=st.integers(0, 10**7),
    lead=st.integers(2, 1440),
)
def test_no_extension_lowers_a_limit_or_passes_the_users_own(own, set_minutes, used_s, lead):
    job = slurm_job(used_s=used_s, note=JobNote(own_minutes=own, set_minutes=set_minutes))

    for _, minutes, note in extensions([job], lead):
        assert minutes is not None
        assert minutes > set_minutes
        assert own is None or minutes <= own
        assert note.set_minutes == minutes
        assert minutes == own or minutes * 60 - used_s >= lead * 60
