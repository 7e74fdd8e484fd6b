"""How far jobs are by their own reports, and what they have to lose."""

from __future__ import annotations

import math

from presage.schedulers.core.reported_progress import Progress


def test_what_is_not_saved_is_counted_in_seconds_at_the_pace_that_was_known_last():
    progress = Progress()
    progress.report("job", 0.5, 100.0, 0.01, saved=0.4)
    assert round(progress.unsaved_s("job", 100.0), 6) == 10.0
    assert round(progress.unsaved_s("job", 105.0), 6) == 15.0

    progress.report("job", 0.55, 105.0, 0.0, saved=0.4)  # its share has changed: no pace yet
    assert progress.pace_s("job") == 0.0
    assert round(progress.unsaved_s("job", 106.0), 6) == 15.0


def test_what_is_all_saved_costs_nothing_also_where_no_pace_was_ever_known():
    progress = Progress()
    progress.report("job", 0.4, 100.0, 0.0, saved=0.4)
    assert progress.unsaved_s("job", 101.0) == 0.0


def test_of_a_job_that_never_said_that_it_saved_nobody_can_tell():
    progress = Progress()
    assert progress.unsaved_s("job", 1.0) == math.inf
    progress.report("job", 0.5, 100.0, 0.01)
    assert progress.unsaved_s("job", 100.0) == math.inf
    progress.report("job", 0.5, 100.0, 0.01, saved=0.2)
    progress.forget("job")
    assert progress.unsaved_s("job", 100.0) == math.inf
