"""Error floor of repeated measurements."""

from pathlib import Path

import numpy as np
import pytest

from presage.features.quantities.quantity_registry import MEMORY, STEP_TIME
from presage.features.tables.campaign import read_campaign
from presage.pipelines.benchmark.repeats import colocated_repeats, floor_figures, solo_repeats

CAMPAIGN = read_campaign(Path(__file__).parents[3] / "data/profiles/cpu-2")


def test_each_measurement_is_predicted_by_the_mean_of_the_others():
    figures = floor_figures([np.array([1.0, 2.0]), np.array([1.0, 1.0, 4.0])])

    # 1 by 2, 2 by 1; 1 by 2.5 (twice), 4 by 1.
    assert figures["rows"] == 5
    assert figures["mape"] == pytest.approx(100 * np.mean([1, 0.5, 1.5, 1.5, 0.75]))


def test_without_repetitions_there_is_no_floor():
    assert floor_figures([]) == {}


def test_solo_references_of_co_locations_repeat_the_step_times_of_solo_runs():
    times = solo_repeats([CAMPAIGN], STEP_TIME)

    assert len(times) > 10
    assert all(len(one) > 1 and (one > 0).all() for one in times)
    assert solo_repeats([CAMPAIGN], MEMORY) == []


def test_a_reference_under_time_slicing_repeats_the_run_on_the_exclusive_device():
    runs = CAMPAIGN.executions[CAMPAIGN.executions["failure"] == ""]
    members = CAMPAIGN.colocations
    assert set(runs["sharing_mode"]) == {"exclusive"}
    assert set(members["sharing_mode"]) == {"time-slice"}
    both = set(runs["job_id"]) & set(members["job_id"])
    measured = len(runs[runs["job_id"].isin(both)]) + len(members[members["job_id"].isin(both)])

    assert sum(map(len, solo_repeats([CAMPAIGN], STEP_TIME))) == measured


def test_the_same_tables_read_twice_repeat_nothing():
    once, twice = (solo_repeats([CAMPAIGN] * n, STEP_TIME) for n in (1, 2))

    assert list(map(len, once)) == list(map(len, twice))


def test_repeated_slowdowns_are_those_of_equal_members():
    assert all(len(one) > 1 for one in colocated_repeats([CAMPAIGN]))
