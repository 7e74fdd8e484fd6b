"""Simulation of phases: rules, laws and bounds (requirements I1, I4, I8, I9)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.jobs import Job
from presage.collectives.arbiter.planner import JobReport, PlannerOptions
from presage.collectives.arbiter.ranks.rank_entry import RankEntry, read_report
from presage.collectives.core.arbitration import decision_tables
from presage.collectives.core.demand import Call
from presage.collectives.phases.estimator import PhaseEstimator
from presage.collectives.simulation import arbitrated
from presage.collectives.simulation.arbitrated import Arbitrated
from presage.collectives.simulation.bounds import largest_gain
from presage.collectives.simulation.compare import (
    REFERENCE,
    RULES,
    make_rule,
    run_rules,
    speeds,
)
from presage.collectives.simulation.phased_job import Way
from presage.collectives.simulation.simulate import simulate_phases
from presage.collectives.v1 import arbiter_pb2 as pb
from tests.collectives.simulation.jobs import MB, job_lists, phased
from tests.support.slow_tests import examples

NAN = float("nan")


@pytest.mark.parametrize(("rule", "way"), [("ring", Way.RING), ("tree", Way.TREE)])
def test_i9_a_job_without_a_switch_takes_its_computation_and_its_costs(rule, way):
    job = phased()
    found = run_rules([job], {"s": 1}, (rule,), duration_s=60)[rule]["a"]

    assert found.iteration_s == pytest.approx(job.solo_s(way))
    assert found.inc_share == 0


@pytest.mark.parametrize("rule", ["first-for-life", "first-come", "own-switch"])
def test_i9_a_job_with_the_switch_for_itself_takes_the_cost_of_inc(rule):
    job = phased()
    found = run_rules([job], {"s": 1}, (rule,), duration_s=60)[rule]["a"]

    assert found.iteration_s == pytest.approx(job.solo_s(Way.INC))
    assert found.inc_share == 1


def test_i9_cost_of_an_iteration_in_numbers():
    job = phased(ranks=4)  # 30 MB at 100 MB/s after 0.5 s of computation

    assert job.solo_s(Way.INC) == pytest.approx(0.8, rel=1e-3)
    assert job.solo_s(Way.RING) == pytest.approx(0.95, rel=1e-3)
    assert job.solo_s(Way.TREE) == pytest.approx(1.1, rel=1e-3)
    assert job.solo_s(None) == job.solo_s(Way.RING)


def test_the_arbiter_learns_the_rhythm_of_a_job_and_gives_it_the_switch():
    found = run_rules([phased()], {"s": 1}, ("time-saved",), duration_s=60)["time-saved"]["a"]

    assert found.inc_share > 0.9
    assert found.refused == 0


def test_i1_the_first_job_holds_the_switch_for_life():
    jobs = [phased("a"), phased("b", start_s=0.1)]
    found = run_rules(jobs, {"s": 1}, ("first-for-life",), duration_s=30)["first-for-life"]

    assert (found["a"].inc_share, found["b"].inc_share) == (1, 0)


def test_i1_two_slots_serve_two_jobs():
    jobs = [phased("a"), phased("b", start_s=0.1)]
    found = run_rules(jobs, {"s": 2}, ("first-come",), duration_s=30)["first-come"]

    assert (found["a"].inc_share, found["b"].inc_share) == (1, 1)


def test_a_job_at_two_switches_takes_both_or_none():
    wide = phased("wide", switches=("s", "t"))
    narrow = phased("narrow", switches=("t",), start_s=0.01)
    rules = ("first-come", "first-for-life")
    found = run_rules([wide, narrow], {"s": 0, "t": 1}, rules, duration_s=30)

    for rule in rules:
        assert (found[rule]["wide"].inc_share, found[rule]["narrow"].inc_share) == (0, 1)


@given(job_lists(), st.integers(0, 2))
@settings(max_examples=examples(10), deadline=None)
def test_i4_no_rule_makes_a_job_slower_than_ring_or_tree(jobs, slots):
    """A job never waits: a refusal costs latencies only."""
    found = run_rules(jobs, {"s": slots}, duration_s=12)
    for rule in ("first-for-life", "first-come", "time-saved", "own-switch"):
        assert speeds(found[rule], found[REFERENCE]).worst >= 0.998


@given(job_lists())
@settings(max_examples=examples(10), deadline=None)
def test_no_rule_exceeds_the_bounds(jobs):
    found = run_rules(jobs, {"s": 1}, duration_s=12)
    own = speeds(found["own-switch"], found[REFERENCE])
    for rule in set(RULES) - {"own-switch"}:
        speed = speeds(found[rule], found[REFERENCE])
        assert all(speed.by_job[job] <= own.by_job[job] * 1.001 for job in own.by_job)
        assert speed.mean <= largest_gain(jobs, 1) * 1.02  # few iterations are counted


@given(job_lists(), st.integers(1, 3))
@settings(max_examples=examples(10), deadline=None)
def test_the_ceiling_rises_with_slots_up_to_a_slot_for_each_job(jobs, slots):
    ceilings = [largest_gain(jobs, s) for s in (0, slots, slots + 1, len(jobs))]
    own = sum(job.solo_s(None) / job.solo_s(Way.INC) for job in jobs) / len(jobs)

    assert ceilings[0] == 1
    assert ceilings == sorted(ceilings) or slots + 1 > len(jobs)
    assert ceilings[-1] <= own + 1e-9


@given(job_lists(jitter=0.05), st.integers(0, 99))
@settings(max_examples=examples(10), deadline=None)
def test_equal_input_gives_equal_output(jobs, seed):
    once, twice = (run_rules(jobs, {"s": 1}, duration_s=12, seed=seed) for _ in range(2))

    assert once == twice


def test_jitter_of_a_job_does_not_depend_on_the_rule_or_on_other_jobs():
    jobs = [phased("a", jitter=0.1), phased("b", jitter=0.1, start_s=0.2)]
    alone = run_rules(jobs[:1], {"s": 1}, ("ring",), duration_s=60)["ring"]["a"]
    both = run_rules(jobs, {"s": 1}, ("ring", "first-come"), duration_s=60)

    assert both["ring"]["a"] == alone
    assert both["first-come"]["a"].iteration_s < alone.iteration_s


def test_the_arbiter_decides_nothing_outside_its_window():
    once = ArbiterOptions(plan_s=30.0, planner=PlannerOptions(min_window=1, max_window=1))
    found = run_rules([phased()], {"s": 1}, ("time-saved",), duration_s=60, options=once)

    assert found["time-saved"]["a"].inc_share < 0.02


def test_the_simulated_arbiter_plans_as_the_live_one(monkeypatch):
    views = []

    def recorded(view):
        views.append(view)
        return decision_tables(view)

    monkeypatch.setattr(arbitrated, "decision_tables", recorded)
    jobs = [phased("a"), phased("b", start_s=0.1)]
    run_rules(jobs, {"s": 1}, ("time-saved",), duration_s=60)
    planner = PlannerOptions()
    rates = [len(job.calls) / job.period_s for job in views[-1].jobs]

    assert make_rule("time-saved", jobs, {"s": 1}, ArbiterOptions()).interval_s == 0.25
    assert views[-1].window == max(planner.min_window, math.ceil(planner.horizon_s * max(rates)))
    assert len(views) < 60 / 0.25 / 4  # only for a reason
    assert all(job.margin_s == planner.margin == 0 for job in views[-1].jobs)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_simulated_arbiter_has_the_demands_that_the_live_one_makes_of_reports(
    is_known, monkeypatch
):
    planned: list[JobReport] = []
    monkeypatch.setattr(arbitrated, "plan", lambda reports, *_: planned.extend(reports))
    job, start_s = phased(switches=("s",)), 0.0
    rule = Arbitrated([job], {"s": 1}, ArbiterOptions())
    estimator = PhaseEstimator(clock=lambda: start_s)
    for number in range(40 if is_known else 1):
        call, start_s = job.calls[number % 2], 0.9 * (number // 2) + 0.1 * (number % 2)
        rule.observe(job, number, start_s, call.size_bytes)
        estimator.observe(number, start_s, call.size_bytes, on_switch=False)
    rule.plan(start_s)
    own, phases = planned[0].demand, estimator.estimate()
    live = Job("a", job.ranks, b"", 1, job.switches, largest_bytes=20 * MB)
    live.ranks = {rank: RankEntry(str(rank), "") for rank in range(job.ranks)}
    for entry in live.ranks.values():
        report = pb.Report(started=number)
        if phases is not None:
            calls = [pb.Call(offset_s=c.offset_s, size_bytes=c.size_bytes) for c in phases.calls]
            report.phases.CopyFrom(
                pb.Phases(
                    period_s=phases.period_s, calls=calls, anchor_number=phases.anchor_number,
                    anchor_age_s=100.0 - phases.anchor_s, margin_s=phases.margin_s,
                )
            )  # fmt: skip
        read_report(entry, report, 100.0)
    found, problem = live.demand(job.link)

    assert found.is_predictable == own.is_predictable == is_known == (not problem)
    assert found.calls == own.calls
    assert found.largest_saving_s == own.largest_saving_s
    if is_known:
        assert found.arrival_s(99) == pytest.approx(own.arrival_s(99))
        assert (found.period_s, found.margin_s) == (own.period_s, own.margin_s)


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": 0},
        {"calls": ()},
        {"calls": (Call(0.5, MB), Call(0.1, MB))},
        {"calls": (Call(NAN, MB),)},
        {"calls": (Call(-1.0, MB),)},
        {"calls": (Call(0.1, -1),)},
        {"jitter": NAN},
        {"jitter": -0.1},
        {"start_s": NAN},
        {"ranks": 1, "calls": (Call(0.0, MB),)},  # an iteration takes no time
    ],
)
def test_impossible_jobs_are_rejected(options):
    with pytest.raises(ValueError, match="job 'a'"):
        replace(phased(), **options)


def test_impossible_runs_are_rejected():
    with pytest.raises(ValueError, match="same id"):
        run_rules([phased(), phased()], {"s": 1}, duration_s=9)
    with pytest.raises(ValueError, match="unknown switch 's'"):
        run_rules([phased()], {}, duration_s=9)
    with pytest.raises(ValueError, match="run longer"):
        run_rules([phased()], {"s": 1}, duration_s=1)
    with pytest.raises(ValueError, match="unknown rule 'last'"):
        run_rules([phased()], {"s": 1}, ("last",), duration_s=9)


def test_a_job_of_one_rank_uses_no_switch():
    jobs = [phased("one", ranks=1), phased("b")]
    rule = make_rule("time-saved", jobs, {"s": 1}, ArbiterOptions())
    found = simulate_phases(jobs, {"s": 1}, rule, duration_s=60)

    assert found["one"].inc_share == 0
    assert found["b"].inc_share > 0.9
