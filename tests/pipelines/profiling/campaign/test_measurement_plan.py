"""Measurement plan: selection and order of jobs, checked without measuring."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.features.device.device import Share
from presage.pipelines.profiling.campaign.measurement_plan import (
    Candidate,
    MeasuredJob,
    Sharing,
    draw_colocations,
    farthest_first,
    informative_order,
    order_jobs,
)
from presage.pipelines.profiling.running.work import colocation_id
from presage.pipelines.profiling.zoo import JobConfig, all_configs

GRID = all_configs()
configs = st.lists(st.sampled_from(GRID), unique=True, max_size=60)
seeds = st.integers(0, 2**16)
WHOLE = Share(mode="time-slice")
TURNS = Sharing({2: 0.7, 3: 0.3}, ("time-slice",), WHOLE)


def job_with_features(*points: float, seconds: float = 5.0) -> list[Candidate]:
    return [
        Candidate(JobConfig("mlp", f"at-{x:g}", 8), np.array([float(x)]), seconds) for x in points
    ]


def measured_job(names, memory_bytes: int = 1) -> dict[str, MeasuredJob]:
    return {
        name: MeasuredJob(np.array([float(i), float(i % 3)]), memory_bytes)
        for i, name in enumerate(sorted(names))
    }


def draw(names, n: int, *, sharing: Sharing = TURNS, capacity: int = 100, memory: int = 1, **more):
    drawn = draw_colocations(
        measured_job(names, memory), "cpu-2", sharing, capacity_bytes=capacity, **more
    )
    return list(itertools.islice(drawn, n))


@given(configs, seeds)
def test_a_plan_holds_every_job_once_and_is_reproducible(configs, seed):
    plan = order_jobs(configs, seed=seed)

    assert Counter(plan) == Counter(configs)
    assert plan == order_jobs(list(reversed(configs)), seed=seed)


@given(configs, seeds, st.integers(0, 60))
def test_every_prefix_of_a_plan_is_spread_over_families_and_variants(configs, seed, length):
    plan = order_jobs(configs, seed=seed)
    begun, later = plan[:length], plan[length:]

    def is_spread(aspect: Callable[[JobConfig], str], within: list[JobConfig]) -> bool:
        counts = Counter(map(aspect, within))
        waiting = {aspect(config) for config in later} & {aspect(config) for config in plan}
        most = max(counts.values(), default=0)
        return all(counts[name] >= most - 1 for name in waiting)

    assert is_spread(lambda config: config.family, begun)
    for family in {config.family for config in begun}:
        later_of_family = [config for config in later if config.family == family]
        counts = Counter(config.variant for config in begun if config.family == family)
        for config in later_of_family:
            assert counts[config.variant] >= max(counts.values()) - 1


def test_the_farthest_job_is_measured_next_and_the_middle_one_first():
    order = [job.vector[0] for job in farthest_first(job_with_features(0, 1, 5, 9, 10), [])]

    assert order[:3] == [5, 0, 10]


def test_jobs_far_from_measured_ones_come_first():
    order = [
        job.vector[0] for job in farthest_first(job_with_features(0, 4, 10), [np.array([0.0])])
    ]

    assert order == [10, 4, 0]


def test_a_job_ten_times_as_long_is_measured_after_one_half_as_far():
    near, far = job_with_features(5), job_with_features(10, seconds=50.0)
    order = [job.vector[0] for job in farthest_first([*far, *near], [np.array([0.0])])]

    assert order == [5, 10]


@given(st.lists(st.integers(0, 100), unique=True, min_size=2, max_size=30))
def test_distances_to_the_chosen_jobs_do_not_increase_along_a_plan(points):
    """Farthest-first: each point is at most as far from the chosen ones as the previous."""
    order = [job.vector[0] for job in farthest_first(job_with_features(*points), [])]
    gaps = [min(abs(order[n] - p) for p in order[:n]) for n in range(1, len(order))]

    assert gaps == sorted(gaps, reverse=True)
    assert sorted(order) == sorted(points)


def test_features_of_jobs_are_computed_lazily_in_pools():
    asked = []

    def describe(configs):
        asked.append(len(configs))
        seen = configs[:3]  # no time for more
        return 3, [Candidate(c, np.array([float(len(c.name))]), 1.0) for c in seen]

    order = informative_order(GRID[:10], describe, pool=4, measured=[])
    first = [next(order) for _ in range(3)]
    assert asked == [4]
    rest = list(order)

    assert asked == [4, 4, 4, 1]
    assert {job.config for job in (*first, *rest)} == set(GRID[:10])


@settings(deadline=None)
@given(st.sets(st.sampled_from([c.name for c in GRID]), max_size=12), seeds)
def test_colocations_are_of_measured_jobs_and_never_drawn_twice(names, seed):
    drawn = draw(names, 20, seed=seed)
    ids = [colocation_id(members, "cpu-2", shares) for members, shares in drawn]

    assert len(set(ids)) == len(ids)
    assert all(set(members) <= names and 2 <= len(members) <= 3 for members, _ in drawn)
    assert drawn == draw(names, 20, seed=seed)
    rest = draw(names, 20, seed=seed, done=drawn[:10])
    assert not {colocation_id(members, "cpu-2", shares) for members, shares in rest} & set(ids[:10])


def test_colocations_are_mostly_pairs_and_every_job_leads_one_first():
    names = [config.name for config in GRID[:40]]
    drawn = [members for members, _ in draw(names, 200, seed=0)]

    assert 0.15 < sum(len(members) == 3 for members in drawn) / len(drawn) < 0.6
    assert set(names) <= {job for members in drawn[:40] for job in members}


def test_a_later_call_begins_with_jobs_without_a_colocation():
    names = [config.name for config in GRID[:40]]
    first = draw(names, 8, seed=0)
    met = {job for members, _ in first for job in members}
    then = draw(names, len(names) - len(met), seed=0, done=first)

    assert 0 < len(met) < len(names)
    assert set(names) == met | {job for members, _ in then for job in members}


def test_a_colocation_beyond_memory_is_drawn_seldom():
    names = [config.name for config in GRID[:30]]
    roomy, tight = (draw(names, 60, seed=1, capacity=c, memory=60) for c in (1000, 130))
    over = [members for members, _ in tight if 60 * len(members) > 130]

    assert all(60 * len(members) <= 1000 for members, _ in roomy)
    assert 0 < len(over) < len(tight) / 2


def test_with_mps_each_member_gets_a_share_and_modes_alternate():
    names = [config.name for config in GRID[:30]]
    both = Sharing({2: 1.0, 4: 1.0}, ("time-slice", "mps"), WHOLE)
    drawn = draw(names, 40, seed=0, sharing=both)

    assert [shares[0].mode for _, shares in drawn] == ["time-slice", "mps"] * 20
    for members, shares in drawn:
        assert len(shares) == len(members)
        if shares[0].mode == "mps":
            assert all(0.1 <= share.fraction <= 0.9 for share in shares)
    assert len({share.fraction for _, shares in drawn for share in shares}) > 4


@pytest.mark.parametrize(
    ("shares", "name"),
    [
        ((), "a + b @ h100"),
        ((WHOLE, WHOLE), "a + b @ h100"),
        ((Share(0.7, "mps"), Share(0.3, "mps")), "a 30% + b 70% @ h100 by mps"),
    ],
)
def test_the_name_of_a_colocation_does_not_depend_on_the_order_of_members(shares, name):
    assert colocation_id(["b", "a"], "h100", shares) == name
    assert colocation_id(["a", "b"], "h100", shares[::-1]) == name
