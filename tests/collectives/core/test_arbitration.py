"""Arbitration: requirements I1, I2, I3, I8, and laws of the decisions of a view."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.collectives.core.arbitration import (
    Claim,
    decide,
    decision_tables,
    predicted_arrivals,
)
from presage.collectives.core.view import Reason
from tests.collectives.core.jobs import job, jobs, view

claims = st.builds(Claim, st.floats(-10, 0), st.text("abcdef", min_size=1, max_size=3))


def reasons(tables, name):
    return [Reason(code) for code in tables[name].decisions]


def test_i1_another_job_that_uses_the_switch_keeps_it():
    tables = decision_tables(view(job("user"), job("late", anchor_s=0.9, size=10)))

    assert set(reasons(tables, "user")) == {Reason.HIGHEST_SCORE}
    assert set(reasons(tables, "late")) == {Reason.IN_USE}


def test_i2_without_an_arrival_during_the_run_it_is_allowed():
    tables = decision_tables(view(job("a"), job("b", anchor_s=5.0)))

    assert set(reasons(tables, "a")) == set(reasons(tables, "b")) == {Reason.NO_OTHER_ARRIVAL}


def test_i2_an_arrival_within_the_margin_of_the_prediction_counts():
    # b arrives 0.2 s after the end of a; a saves less than b.
    late = job("b", anchor_s=1.2, size=4_000_000)
    sharp, vague = view(job("a"), late), view(job("a", margin_s=0.3), late)

    assert reasons(decision_tables(sharp), "a")[0] is Reason.NO_OTHER_ARRIVAL
    assert reasons(decision_tables(vague), "a")[0] is Reason.LOWER_SCORE


def test_i3_the_highest_score_gets_the_switch():
    tables = decision_tables(view(job("a"), job("b", anchor_s=0.5, size=2_000_000)), ageing=0)

    assert set(reasons(tables, "a")) == {Reason.LOWER_SCORE}
    assert Reason.NO_OTHER_ARRIVAL in reasons(tables, "b")


def test_i3_several_rivals_share_the_slots_in_the_order_of_scores():
    rivals = (Claim(-3.0, "x"), Claim(-1.0, "y"))

    assert decide(Claim(-2.0, "z"), used=0, rivals=rivals, slots=1) is Reason.LOWER_SCORE
    assert decide(Claim(-2.0, "z"), used=0, rivals=rivals, slots=2) is Reason.HIGHEST_SCORE


def test_i8_ties_go_to_the_smaller_id():
    tables = decision_tables(view(job("b"), job("a")), ageing=0)

    assert reasons(tables, "a")[0] is Reason.HIGHEST_SCORE
    assert reasons(tables, "b")[0] is Reason.IN_USE


def test_i8_the_score_of_a_job_that_was_denied_rises():
    large, small = job("large", anchor_s=0.5, size=1_300_000), job("small")

    assert not any(decision_tables(view(large, small), ageing=0)["small"].decisions[i] & 1
                   for i in range(8))  # fmt: skip
    assert any(
        reason.is_allowed for reason in reasons(decision_tables(view(large, small)), "small")
    )


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_period_that_predicts_nothing_counts_as_soon(period_s):
    unknown = job("unknown", period_s=period_s, size=2_000_000)
    tables = decision_tables(view(unknown, job("known", anchor_s=5.0)))

    assert set(reasons(tables, "unknown")) == {Reason.RESERVED}
    assert set(reasons(tables, "known")) == {Reason.IN_USE}


def test_a_job_of_one_rank_does_not_use_the_switch():
    tables = decision_tables(view(job("a", ranks=1), job("b")))

    assert set(reasons(tables, "a")) == {Reason.SINGLE_RANK}
    assert set(reasons(tables, "b")) == {Reason.NO_OTHER_ARRIVAL}


def test_a_job_over_several_switches_takes_all_or_none():
    wide = job("wide", switches=("s", "t"))
    on_t = job("t", switches=("t",), anchor_s=0.5, size=4_000_000)
    tables = decision_tables(view(wide, on_t), ageing=0)

    assert set(reasons(tables, "wide")) == {Reason.LOWER_SCORE}


@given(claims, st.lists(claims, max_size=5), st.integers(0, 4), st.integers(0, 4))
def test_more_slots_never_take_an_allowance_away(claim, rivals, used, slots):
    fewer = decide(claim, used=used, rivals=tuple(rivals), slots=slots)
    more = decide(claim, used=used, rivals=tuple(rivals), slots=slots + 1)

    assert more.is_allowed or not fewer.is_allowed


@given(claims, st.lists(claims, max_size=5), st.integers(0, 4))
def test_a_slot_is_denied_only_to_a_user_or_a_rival_of_higher_score(claim, rivals, slots):
    reason = decide(claim, used=0, rivals=tuple(rivals), slots=slots)

    higher = sum(rival < claim for rival in rivals)
    assert reason.is_allowed == (slots > 0 and (len(rivals) < slots or higher < slots))


@given(jobs(max_jobs=1), st.integers(1, 3))
def test_a_job_that_has_the_switch_for_itself_always_uses_it(only, slots):
    tables = decision_tables(view(*only, slots=slots))

    assert all(code & 1 for code in tables["job0"].decisions) == (only[0].ranks > 1)


@given(jobs(), st.integers(1, 3))
def test_decisions_depend_on_the_view_only(some, slots):
    expected = decision_tables(view(*some, slots=slots))

    assert decision_tables(view(*some, slots=slots)) == expected
    assert decision_tables(view(*reversed(some), slots=slots)) == expected


@given(jobs(), st.integers(1, 3))
def test_predicted_runs_on_a_switch_never_exceed_its_slots(some, slots):
    tables = decision_tables(view(*some, slots=slots))
    arrivals_s = predicted_arrivals(view(*some, slots=slots))
    always = sum(set(tables[j.job_id].decisions) == {Reason.RESERVED} for j in some)
    runs = [
        (at_s, at_s + j.inc_s(number), j.job_id)
        for j in some
        for number, at_s in enumerate(arrivals_s.get(j.job_id, ()))
        if tables[j.job_id].is_allowed(number)
    ]

    assert always <= slots
    for start_s, _, name in runs:
        others = {n for a, b, n in runs if a <= start_s < b and n != name}
        assert len(others) + 1 + always <= slots


@given(jobs(), st.integers(1, 2))
def test_an_idle_switch_is_denied_only_in_favour_of_another_job(some, slots):
    tables = decision_tables(view(*some, slots=slots))
    arrivals_s = predicted_arrivals(view(*some, slots=slots))
    arrivals = [
        (j, number, at_s) for j in some for number, at_s in enumerate(arrivals_s.get(j.job_id, ()))
    ]

    for job_, number, at_s in arrivals:
        if tables[job_.job_id].reason(number) is Reason.LOWER_SCORE:
            end_s = at_s + job_.inc_s(number) + job_.margin_s
            assert any(
                other is not job_ and at_s <= other_s < end_s + other.margin_s
                for other, _, other_s in arrivals
            )


def test_an_allreduce_on_the_switch_moves_those_after_it():
    by_switch = predicted_arrivals(view(job("a", shift_s=None)))["a"]
    hidden = predicted_arrivals(view(job("a", shift_s=0.0)))["a"]

    assert by_switch == pytest.approx([9.5 * i for i in range(8)], abs=0.01)  # each saves 0.5 s
    assert hidden == pytest.approx([10.0 * i for i in range(8)])


def test_decisions_before_the_adoption_are_kept_and_occupy_the_switch():
    rival = job("b", anchor_s=0.5, size=2_000_000)  # saves more
    kept = (bytes([Reason.HIGHEST_SCORE]), bytes([Reason.LOWER_SCORE]))
    tables = decision_tables(replace(view(job("a"), rival), kept=kept), ageing=0)

    assert reasons(tables, "a")[:2] == [Reason.HIGHEST_SCORE, Reason.LOWER_SCORE]
    assert reasons(tables, "b")[:2] == [Reason.LOWER_SCORE, Reason.NO_OTHER_ARRIVAL]


def test_kept_decisions_of_another_number_of_jobs_are_refused():
    with pytest.raises(ValueError, match="1 jobs, 2 kept decisions"):
        replace(view(job("a")), kept=(b"", b""))
