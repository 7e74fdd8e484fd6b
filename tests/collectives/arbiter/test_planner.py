"""Planner: pure, deterministic, and quiet while nothing changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.collectives.arbiter.planner import ADOPTION_CALLS, JobReport, PlannerOptions, plan
from presage.collectives.core.arbitration import decision_tables, predicted_arrivals
from presage.collectives.core.costs import Link
from presage.collectives.core.demand import Call, JobDemand

LINK = Link(5e-6, 1e9)
SLOTS = {"tor": 1}
OPTIONS = PlannerOptions()


def report(name="job", started=0, period_s=0.1, sizes=(1 << 20,), anchor_s=0.0, margin_s=0.001):
    calls = tuple(Call(0.01 * i, size) for i, size in enumerate(sizes))
    demand = JobDemand(name, 2, ("tor",), LINK, period_s, calls, 0, anchor_s, margin_s)
    return JobReport(demand, started)


def test_a_first_job_gets_a_view_that_begins_at_a_number_all_ranks_have_started():
    view = plan([report(started=7)], None, SLOTS)
    assert view is not None
    assert view.first_numbers == (7,)
    assert view.window == math.ceil(OPTIONS.horizon_s / 0.1)


def test_nothing_changes_without_a_reason():
    reports = [report("a"), report("b", anchor_s=0.05)]
    view = plan(reports, None, SLOTS)
    assert plan(reports, view, SLOTS) is None


@pytest.mark.parametrize(
    "changed",
    [
        [report("a")],
        [report("a"), report("b"), report("c")],
        [report("a"), report("b", sizes=(1, 2))],
        [report("a"), report("b", period_s=0.11)],
        [report("a"), report("b", anchor_s=0.004)],
        [report("a"), report("b", period_s=math.nan)],
        [report("a"), report("b", started=50)],
    ],
    ids=["goes", "comes", "sizes", "period", "position", "unpredictable", "half of the window"],
)
def test_a_change_makes_a_view(changed):
    view = plan([report("a"), report("b")], None, SLOTS)
    assert plan(changed, view, SLOTS) is not None


def test_an_arrival_that_moves_by_less_than_its_margin_changes_nothing():
    view = plan([report(margin_s=0.005)], None, SLOTS)
    assert plan([report(margin_s=0.005, anchor_s=0.004)], view, SLOTS) is None


def test_a_switch_that_cannot_be_reached_takes_all_grants_away():
    view = plan([report()], None, SLOTS)
    lost = plan([report()], view, {"tor": 0})
    assert lost is not None
    assert not any(reason & 1 for reason in decision_tables(lost)["job"].decisions)


def planned(reports, current=None, slots=SLOTS, **options):
    """Return the view that is planned."""
    view = plan(reports, current, slots, **options)
    assert view is not None
    return view


def test_a_predictable_job_alone_is_allowed_from_the_adoption_on_i2():
    view = planned([report()])
    decisions, adopted = decision_tables(view)["job"].decisions, len(view.kept[0])
    assert ADOPTION_CALLS <= adopted <= view.window // 4
    assert not any(reason & 1 for reason in decisions[:adopted])
    assert all(reason & 1 for reason in decisions[adopted:])


def test_a_new_view_keeps_what_starts_before_its_adoption():
    first = planned([report()])
    tables = decision_tables(first)
    later = [report(started=first.window // 2), report("z")]
    second = planned(later, first, tables=tables)

    number, kept = second.first_numbers[0], second.kept[0]
    assert len(kept) >= ADOPTION_CALLS
    assert list(kept) == [tables["job"].reason(number + i) for i in range(len(kept))]
    assert not decision_tables(second)["job"].revokes(tables["job"].before(number + len(kept)))
    assert planned(later, first, {"tor": 0}, tables=tables).kept == ()


def test_a_rhythm_that_moves_as_the_decisions_predict_changes_nothing():
    demand = report(margin_s=0.0).demand
    demand = replace(demand, calls=(Call(0.0, 1 << 20, shift_s=0.01),))
    view = planned([JobReport(demand, 0)])
    started = len(view.kept[0]) + 5
    arrival_s = predicted_arrivals(view)["job"][started]
    assert arrival_s < 0.1 * started  # the switch has saved time
    moved = replace(view.jobs[0], anchor_number=started, anchor_s=arrival_s)
    assert plan([JobReport(moved, started)], view, SLOTS) is None
    unmoved = replace(moved, anchor_s=0.1 * started)
    assert plan([JobReport(unmoved, started)], view, SLOTS) is not None


jobs = st.lists(
    st.builds(
        report,
        name=st.sampled_from(["a", "b", "c", "d"]),
        started=st.integers(-1, 10_000),
        period_s=st.one_of(st.floats(0.001, 10), st.sampled_from([math.nan, math.inf, 0.0, -1.0])),
        sizes=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=4).map(tuple),
        anchor_s=st.floats(-100, 100),
    ),
    max_size=4,
    unique_by=lambda one: one.demand.job_id,
)


@given(jobs, st.randoms(use_true_random=False))
def test_laws_of_the_planner(reports, random):
    view = plan(reports, None, SLOTS)
    assert view is not None
    shuffled = list(reports)
    random.shuffle(shuffled)
    assert plan(shuffled, None, SLOTS) == view  # the order of reports does not matter
    assert plan(reports, view, SLOTS) is None  # one view is enough
    assert len(view.jobs) * view.window <= max(OPTIONS.max_decisions, len(view.jobs))
    for one in reports:
        index = [job.job_id for job in view.jobs].index(one.demand.job_id)
        assert view.first_numbers[index] == max(one.started, 0)


@given(jobs.filter(bool))
def test_windows_move_on_with_the_numbers(reports):
    view = plan(reports, None, SLOTS)
    assert view is not None
    later = [replace(one, started=max(one.started, 0) + view.window) for one in reports]
    following = plan(later, view, SLOTS)
    assert following is not None
    assert all(a > b for a, b in zip(following.first_numbers, view.first_numbers, strict=True))
