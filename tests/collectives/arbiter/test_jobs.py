"""Registrations and reports that cannot be are refused, or count as soon, with a reason."""

from __future__ import annotations

import math

import pytest

from presage.collectives.arbiter.jobs import (
    MOST_GAP,
    Jobs,
    check_epochs,
    check_registration,
)
from presage.collectives.arbiter.ranks.rank_entry import RankEntry, read_report
from presage.collectives.core.costs import Link
from presage.collectives.core.demand import Call
from presage.collectives.core.view import JobView
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import InvalidRequestError, OverloadedError, RefusedAgentError

LINK = Link(5e-6, 1e9)


def registration(job="job", rank=0, ranks=2, token=b"t" * 32, instance="", **more):
    return pb.Registration(
        job=job,
        rank=rank,
        ranks=ranks,
        job_token_sha256=token,
        instance=instance or f"process {rank}",
        **more,
    )


def phases(**more):
    values = {"period_s": 0.1, "anchor_age_s": 0.01, "margin_s": 0.001}
    calls = more.pop("calls", [pb.Call(offset_s=0.0, size_bytes=100)])
    return pb.Phases(**{**values, **more}, calls=calls)


def registered(jobs=None, **more):
    jobs = jobs or Jobs(4, lease_s=1.0)
    for rank in range(2):
        job = jobs.register(registration(rank=rank, **more), 0.0, 1)
    job.switches = ("tor",)
    return job


@pytest.mark.parametrize(
    "changed",
    [
        {"job": ""},
        {"job": "a b"},
        {"job": "x" * 65},
        {"rank": 2},
        {"ranks": 0},
        {"ranks": 5000, "rank": 0},
        {"token": b""},
        {"instance": "x" * 65},
        {"node": "a\nb"},
        {"node": "x" * 200},
    ],
)
def test_a_registration_that_cannot_be_is_refused(changed):
    with pytest.raises(InvalidRequestError):
        check_registration(registration(**changed))


def test_forged_epochs_are_refused_and_those_of_a_lost_journal_are_not():
    check_epochs(registration(newest_epoch=100), newest=3)
    with pytest.raises(InvalidRequestError, match="never published"):
        check_epochs(registration(newest_epoch=4 + MOST_GAP), newest=3)
    forged = [pb.JobView(epoch=2**63 - 1)]
    with pytest.raises(InvalidRequestError):
        check_epochs(registration(views=forged), newest=3)


def test_ranks_that_disagree_on_n_are_refused():
    jobs = Jobs(4, lease_s=1.0)
    jobs.register(registration(rank=0), 0.0, 1)
    with pytest.raises(RefusedAgentError, match="2 ranks, and rank 1 says 3"):
        jobs.register(registration(rank=1, ranks=3), 0.0, 1)


def test_two_jobs_of_one_name_are_refused_until_the_first_has_ended():
    jobs = Jobs(4, lease_s=1.0)
    job = registered(jobs)
    other = registration(token=b"o" * 32)
    with pytest.raises(RefusedAgentError, match="another job"):
        jobs.register(other, 0.5, 2)
    for entry in job.ranks.values():
        entry.gone_s = 1.0
    with pytest.raises(RefusedAgentError):
        jobs.register(other, 1.5, 2)
    assert jobs.register(other, 2.5, 2) is not job


def test_a_job_that_changes_n_is_another_job_after_its_ranks_have_left():
    jobs = Jobs(4, lease_s=60.0)
    job = registered(jobs)
    for entry in job.ranks.values():
        entry.has_left = True
    assert jobs.register(registration(ranks=3), 0.1, 2).size == 3


def test_another_process_of_a_rank_begins_a_new_job_and_the_same_one_does_not():
    jobs = Jobs(4, lease_s=1.0)
    job = registered(jobs)
    assert jobs.register(registration(rank=1), 0.2, 2) is job
    assert jobs.register(registration(rank=1, instance="restarted"), 0.2, 2) is not job


def test_jobs_are_bounded():
    jobs = Jobs(1, lease_s=1.0)
    registered(jobs)
    with pytest.raises(OverloadedError):
        jobs.register(registration(job="second"), 0.0, 1)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"period_s": 0.0}, "period of 0 s"),
        ({"period_s": -1.0}, "period of -1 s"),
        ({"period_s": math.nan}, "period of nan s"),
        ({"period_s": math.inf}, "period of inf s"),
        ({"anchor_age_s": math.nan}, "not finite"),
        ({"margin_s": -0.1}, "negative margin"),
        ({"margin_s": math.inf}, "not finite"),
        ({"calls": []}, "0 AllReduces"),
        ({"calls": [pb.Call(shift_s=math.nan)]}, "not finite"),
        ({"calls": [pb.Call(shift_s=-0.1)]}, "delays the next one"),
        ({"calls": [pb.Call(size_bytes=2**63)]}, "impossible size"),
        ({"calls": [pb.Call(offset_s=0.05), pb.Call(offset_s=0.01)]}, "do not increase"),
        ({"calls": [pb.Call(offset_s=0.0), pb.Call(offset_s=0.5)]}, "do not increase"),
        ({"calls": [pb.Call()] * 5000}, "5000 AllReduces"),
    ],
)
def test_arrivals_that_cannot_be_predicted_count_as_soon_with_a_reason(changed, reason):
    job = registered()
    for entry in job.ranks.values():
        read_report(entry, pb.Report(started=3, phases=phases(**changed)), 1.0)
    demand, problem = job.demand(LINK)
    assert not demand.is_predictable
    assert reason in problem


def test_a_report_out_of_range_is_refused():
    with pytest.raises(InvalidRequestError):
        read_report(RankEntry("x", ""), pb.Report(started=-2), 0.0)


def test_the_demand_has_the_median_period_and_the_anchor_of_the_lowest_rank():
    job = registered()
    read_report(job.ranks[0], pb.Report(started=5, phases=phases(period_s=0.2)), 10.0)
    read_report(job.ranks[1], pb.Report(started=4, phases=phases(period_s=0.1)), 10.0)
    demand, problem = job.demand(LINK)
    assert (demand.period_s, problem) == (pytest.approx(0.15), "")
    assert demand.anchor_s == pytest.approx(9.99)
    assert job.started == 4


def test_a_rank_that_takes_two_iterations_for_one_agrees_with_the_others():
    job = registered()
    twice = [pb.Call(size_bytes=7), pb.Call(offset_s=0.1, size_bytes=7)]
    once = phases(period_s=0.1, calls=twice[:1])
    read_report(job.ranks[0], pb.Report(started=5, phases=phases(period_s=0.22, calls=twice)), 10.0)
    read_report(job.ranks[1], pb.Report(started=5, phases=once), 10.0)
    demand, problem = job.demand(LINK)
    assert (demand.period_s, problem) == (pytest.approx(0.105), "")
    assert demand.calls == (Call(0.0, 7),)


def test_ranks_that_report_other_sizes_count_as_soon():
    job = registered()
    read_report(job.ranks[0], pb.Report(started=5, phases=phases()), 10.0)
    other = phases(calls=[pb.Call(size_bytes=7)])
    read_report(job.ranks[1], pb.Report(started=5, phases=other), 10.0)
    demand, problem = job.demand(LINK)
    assert not demand.is_predictable
    assert "ranks 0 and 1" in problem


def test_i8_without_a_rhythm_the_largest_known_size_counts():
    job = registered()
    assert job.demand(LINK)[0].calls == (Call(0.0, 0),)
    job.largest_bytes = 5000
    assert job.demand(LINK)[0].calls == (Call(0.0, 5000),)
    for rank, size in enumerate((7000, 6000)):
        other = phases(calls=[pb.Call(size_bytes=size)])
        read_report(job.ranks[rank], pb.Report(started=5, phases=other), 10.0)
    assert job.demand(LINK)[0].calls == (Call(0.0, 7000),)


def test_views_of_a_job_are_bounded():
    views = [JobView(epoch, 0, b"\1" * 60_000) for epoch in range(1, 100)]
    with pytest.raises(InvalidRequestError, match="too many views"):
        Jobs(4, 1.0).check_views("job", views)
