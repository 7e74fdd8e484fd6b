from __future__ import annotations

import pytest

from presage.schedulers.slurm.watch.slurm_job import parse_jobs
from tests.schedulers.slurm.jobs import NOTE, slurm_job, squeue_line


def parsed(*lines):
    return list(parse_jobs("\n".join(lines)))


def test_a_line_of_squeue_is_a_job():
    assert parsed(squeue_line()) == [slurm_job(ended_unix_s=1_001_900)]


def test_times_are_days_hours_minutes_and_seconds():
    (job,) = parsed(squeue_line(TimeLimit="2-01:30:00", TimeUsed="1:02:03"))
    assert (job.limit_minutes, job.used_s) == (2970, 3723)
    (job,) = parsed(squeue_line(TimeLimit="UNLIMITED", TimeUsed="0:00", StartTime="N/A"))
    assert (job.limit_minutes, job.used_s, job.started_unix_s) == (None, 0, 0)


@pytest.mark.parametrize(
    ("tasks", "name"),
    [("N/A", "7"), ("3", "5_3"), ("1-5,9", "5_[1-5,9]"), ("1-5%2", "5_[1-5]"), ("1-5,...", "7")],
)
def test_a_task_of_an_array_is_named_as_one(tasks, name):
    (job,) = parsed(squeue_line(ArrayJobID="5", ArrayTaskID=tasks))
    assert job.name == name


def test_jobs_without_a_valid_note_are_skipped():
    assert parsed(squeue_line(""), squeue_line("(null)"), squeue_line("presage: x"), "", "x") == []
    assert parsed(squeue_line(TimeLimit="INVALID")) == []
    assert parsed(squeue_line(JobID="one")) == []
    assert len(parsed(squeue_line(f"of another plugin {NOTE.text()}"))) == 1
