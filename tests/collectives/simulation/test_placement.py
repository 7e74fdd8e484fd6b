"""Placement of jobs on switch domains."""

from __future__ import annotations

import pytest

from presage.collectives.simulation.placement import (
    best_placement,
    inc_load,
    largest_load,
    placements,
    predicted_gain,
)
from tests.collectives.simulation.jobs import MB, phased


def test_all_placements_of_equal_switches_are_tried_once():
    jobs = [phased(f"job{i}") for i in range(6)]
    found = list(placements(jobs, ["s", "t"], 3))
    sets = {frozenset(job.job_id for job in placement["s"]) for placement in found}

    assert len(found) == len(sets) == 10
    assert all(job.switches == (name,) for p in found for name, here in p.items() for job in here)


def test_jobs_that_need_the_switch_most_are_placed_apart():
    heavy = [phased(f"heavy{i}", compute_s=0.05, sizes=(80 * MB,)) for i in range(2)]
    light = [phased(f"light{i}", sizes=(MB,)) for i in range(2)]
    by_gain = best_placement([*heavy, *light], ["s", "t"], 2)
    by_load = best_placement([*heavy, *light], ["s", "t"], 2, lambda p: -largest_load(p))

    for found in (by_gain, by_load):
        assert [sum("heavy" in job.job_id for job in here) for here in found.values()] == [1, 1]
    assert predicted_gain(by_gain) > 0


def test_load_is_the_share_of_time_on_the_switch():
    assert inc_load(phased()) == pytest.approx(0.3 / 0.8, rel=1e-3)


def test_jobs_that_do_not_fill_the_switches_are_rejected():
    with pytest.raises(ValueError, match="3 jobs, 2 switches of 2 jobs"):
        list(placements([phased(f"job{i}") for i in range(3)], ["s", "t"], 2))
