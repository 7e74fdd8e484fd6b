"""How far jobs are by their own reports, and what they have to lose."""

from __future__ import annotations

import math

from presage.schedulers.core.reports.reported_progress import Progress


def test_unsaved_work_is_counted_in_seconds_at_the_last_known_speed():
    progress = Progress()
    progress.report("job", 0.5, 100.0, 0.01, saved=0.4)
    assert round(progress.unsaved_s("job", 100.0), 6) == 10.0
    assert round(progress.unsaved_s("job", 105.0), 6) == 15.0

    progress.report("job", 0.55, 105.0, 0.0, saved=0.4)  # its share has changed: no pace yet
    assert progress.pace_s("job") == 0.0
    assert round(progress.unsaved_s("job", 106.0), 6) == 15.0


def test_fully_saved_work_costs_nothing_even_without_a_known_speed():
    progress = Progress()
    progress.report("job", 0.4, 100.0, 0.0, saved=0.4)
    assert progress.unsaved_s("job", 101.0) == 0.0


def test_unsaved_work_is_unknown_for_a_job_without_checkpoints():
    progress = Progress()
    assert progress.unsaved_s("job", 1.0) == math.inf
    progress.report("job", 0.5, 100.0, 0.01)
    assert progress.unsaved_s("job", 100.0) == math.inf
    progress.report("job", 0.5, 100.0, 0.01, saved=0.2)
    progress.forget("job")
    assert progress.unsaved_s("job", 100.0) == math.inf


def test_the_progress_of_several_jobs_is_that_of_each():
    progress = Progress()
    progress.report("a", 0.25, 10.0, 0.01)
    progress.report("b", 0.5, 90.0, 0.0)
    progress.report("c", 0.9, 0.0, 0.5)
    progress.report("d", 0.1, 500.0, 0.1)
    names = ["a", "b", "c", "d", "unknown"]
    assert progress.of_jobs(names, 95.5).tolist() == [progress.at(one, 95.5) for one in names]
    assert progress.of_jobs([], 0.0).tolist() == []
