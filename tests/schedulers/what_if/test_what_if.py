"""When jobs start and end: worked examples, laws and wrong questions."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError, InvalidJobError, UnknownJobError
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.what_if.answer import Verdict, distribution
from presage.schedulers.what_if.snapshot import NO_PAST, Past, PastJob, Returning
from presage.schedulers.what_if.variant import Variant
from presage.schedulers.what_if.what_if import MAX_VARIANTS, what_if
from tests.schedulers.clusters import cluster, job
from tests.schedulers.what_if.paused import Known, paused
from tests.support.slow_tests import examples

GIB = 2**30
DURATIONS = {"a": 100.0, "b": 50.0, "c": 30.0, "d": 20.0}
QUEUE = [job("a", 0.0), job("b", 1.0), job("c", 2.0)]


def asked(snapshot, jobs, forecaster=None, **options):
    options.setdefault("policy", "fifo")
    options.setdefault("samples", 5)
    known = forecaster or Known(DURATIONS)
    return what_if(snapshot, jobs, forecaster=known, **options)


# Worked examples ------------------------------------------------------------------------------


def test_known_run_times_on_one_gpu_give_the_exact_start_and_end():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)

    second, third = asked(snapshot, ["b", "c"])

    assert second.start.samples_s == (60.0,) * 5  # a has run for 40 of its 100 s
    assert second.end.samples_s == (110.0,) * 5
    assert third.start.quantile_s(0.1) == third.start.quantile_s(0.9) == 110.0
    assert third.end.quantile_s(0.5) == 140.0


def test_a_job_that_runs_has_started_when_it_did():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)

    (running,) = asked(snapshot, ["a"])

    assert running.verdict is Verdict.STARTED
    assert running.start.samples_s == (-40.0,) * 5
    assert running.end.samples_s == (60.0,) * 5


def test_a_job_that_is_not_submitted_yet_starts_behind_the_others():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)

    (new,) = asked(snapshot, [Job("d", 0.0)])

    assert new.start.quantile_s(0.5) == 140.0
    assert new.end.quantile_s(0.5) == 160.0


def test_jobs_that_took_longer_than_equal_ones_do_not_count_more():
    """Half of the class took half of its forecast, and half twice as long: the median is right."""
    ended = [job(f"p{i}", 0.0, model="m") for i in range(40)]
    past = Past([PastJob(one, 90.0, (50.0, 200.0)[i % 2]) for i, one in enumerate(ended)])
    known = Known({one.job_id: 100.0 for one in [*ended, job("a"), job("new")]}, high=1.5)
    snapshot = paused(cluster(2), [job("a", 95.0)], {"a": 100.0}, at_s=100.0)

    (new,) = asked(
        replace(snapshot, past=replace(past, since_s=NO_PAST.since_s)),
        [job("new", model="m")], known, samples=200,
    )  # fmt: skip

    assert 75.0 < new.end.quantile_s(0.5) < 130.0  # by true run times it would be 140


@pytest.mark.parametrize("high", [1.1, 4.0])
def test_jobs_of_a_class_vary_as_much_as_those_that_have_ended(high):
    """Run times are 90 or 110 s, whether the forecast has a narrow or a wide interval."""
    ended = [job(f"p{i}", 0.0, model="m") for i in range(40)]
    past = Past([PastJob(one, 90.0, (90.0, 110.0)[i % 2]) for i, one in enumerate(ended)])
    known = Known({one.job_id: 100.0 for one in [*ended, job("new")]}, high=high)
    snapshot = paused(cluster(1), [], {}, at_s=100.0)

    (new,) = asked(
        replace(snapshot, past=replace(past, since_s=NO_PAST.since_s)),
        [job("new", model="m")], known, samples=400,
    )  # fmt: skip

    assert new.end.quantile_s(0.5) == pytest.approx(100.0, rel=0.03)
    assert pstdev(map(math.log, new.end.samples_s)) == pytest.approx(0.1, rel=0.2)


def test_the_policy_in_use_and_another_one_are_asked_about_the_same_queue():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)

    as_it_is, shortest = asked(snapshot, ["c"], variants=[Variant(), Variant(policy="sjf")])

    assert as_it_is.start.quantile_s(0.5) == 110.0
    assert shortest.start.quantile_s(0.5) == 60.0  # before b
    assert (as_it_is.basis.policy, shortest.basis.policy) == ("fifo", "sjf")


def test_fewer_gpus_start_earlier_and_take_longer():
    jobs = [job("a", 0.0, gpus=3), job("b", 1.0, gpus=2)]
    snapshot = paused(cluster(4), jobs, DURATIONS, at_s=10.0)

    two, one = asked(snapshot, ["b"], variants=[Variant(), Variant(gpus=1)])

    assert two.start.quantile_s(0.5) == 90.0
    assert one.start.quantile_s(0.5) == 0.0
    assert one.end.quantile_s(0.5) == 100.0  # twice as long without a forecast of the speed-up


def test_another_kind_is_asked_about_with_its_own_forecast():
    class ByKind(Known):
        def predictions(self, requests):
            found = super().predictions(requests)
            factors = {"v100": 1.0, "a100": 0.5}
            return [
                one and one._replace(runtime_s=one.runtime_s * factors[kind])
                for one, (_, kind) in zip(found, requests, strict=True)
            ]

    nodes = replace(
        cluster(1), nodes=(*cluster(1).nodes, replace(cluster(1, kind="a100").nodes[0], name="n1"))
    )
    jobs = [job("a", 0.0, kinds=("v100",)), job("b", 1.0, kinds=("v100",))]
    snapshot = paused(nodes, jobs, DURATIONS, at_s=10.0)

    same, other = asked(
        snapshot, ["b"], ByKind(DURATIONS), variants=[Variant(), Variant(kinds=("a100",))]
    )

    assert (same.start.quantile_s(0.5), same.end.quantile_s(0.5)) == (90.0, 140.0)
    assert (other.start.quantile_s(0.5), other.end.quantile_s(0.5)) == (0.0, 25.0)


class KnownByKind(Known):
    """Run times in seconds on a fast kind and on a slow one."""

    def __init__(self, runtimes_s):
        super().__init__({})
        self.runtimes_s = runtimes_s

    def predictions(self, requests):
        return [
            RuntimePrediction(self.runtimes_s[job.job_id][kind == "slow"], 1000, GIB)
            for job, kind in requests
        ]


@pytest.mark.parametrize(("policy", "start_s"), [("sjf", 90.0), ("srtf", 0.0)])
def test_jobs_are_ordered_by_the_kinds_that_they_were_submitted_for(policy, start_s):
    nodes = Cluster((Node("f", 1, "fast", 4 * GIB), Node("s", 1, "slow", 64 * GIB)))
    known = KnownByKind({"f": (1e3, 1e3), "s": (100, 100), "y": (500, 500), "x": (10, 1e3)})
    queue = [job("f", 0.0, kinds=("fast",)), job("s", 0.0, kinds=("slow",)),
             job("y", 1.0, kinds=("slow",))]  # fmt: skip
    durations = {"f": 1e3, "s": 100.0, "y": 500.0}
    snapshot = paused(nodes, queue, durations, at_s=10.0, policy=policy, forecaster=known)

    # Its memory excludes the fast kind, but not from the run time by which the queue is ordered.
    (answer,) = asked(snapshot, [job("x", 5.0, memory_bytes=20 * GIB)], known, policy=policy)

    assert answer.start.samples_s == (start_s,) * 5


def test_the_run_time_of_a_job_without_progress_exceeds_what_it_has_run():
    snapshot = paused(cluster(1), QUEUE, {**DURATIONS, "a": 1e6}, at_s=300.0)
    silent = replace(snapshot, progress=Progress())  # a has run for three times its median

    (second,) = asked(silent, ["b"], Known(DURATIONS, high=1.5), samples=50)

    assert second.start.quantile_s(0.0) >= 0
    assert 0 < second.start.quantile_s(0.5) < 200


def test_a_measured_pace_replaces_the_forecast():
    snapshot = paused(cluster(1), QUEUE, {**DURATIONS, "a": 1000.0}, at_s=40.0)

    (second,) = asked(snapshot, ["b"], Known(DURATIONS, high=1.5))

    assert second.start.quantile_s(0.5) == pytest.approx(960.0)  # not 60
    assert second.basis.run_times["its measured pace"] == 1


def test_co_located_jobs_slow_each_other_down_until_one_ends():
    half = dict(model="m", compute_milli=500)
    jobs = [job("a", 0.0, **half), job("b", 0.0, **half), job("c", 1.0, model="m")]
    same = {"a": 100.0, "b": 100.0, "c": 30.0}
    snapshot = paused(cluster(1), jobs, same, at_s=10.0, policy="bin-packing")
    options = dict(policy="bin-packing", forecaster=Known(same, slowdown=2.0))

    (by_forecast,) = asked(replace(snapshot, progress=Progress()), ["c"], **options)
    (by_pace,) = asked(snapshot, ["c"], **options)

    assert by_forecast.start.quantile_s(0.5) == pytest.approx(180.0)
    assert by_pace.start.quantile_s(0.5) == pytest.approx(90.0)  # the pace includes the slowdown


def test_a_job_on_a_silent_node_waits_again_once_the_node_is_lost():
    snapshot = paused(cluster(1), [job("a", 0.0)], DURATIONS, at_s=40.0)
    gone = Returning(
        job("d", 0.5), JobStatus(Phase.RUNNING, 0.5, starts=1), 50.0, 0.5, "n1 is silent"
    )
    snapshot = replace(snapshot, returning=(gone,), jobs={**snapshot.jobs, "d": gone.job})

    (returned,) = asked(snapshot, ["d"])

    assert returned.start.quantile_s(0.5) == 60.0
    assert returned.end.quantile_s(0.5) == 70.0  # half of it is in its checkpoint
    assert "job d waits again in 10 s, because n1 is silent" in returned.basis.assumptions


def test_arrivals_of_the_past_are_repeated_and_may_start_first():
    names = [f"old{i}" for i in range(40)]
    past = Past([PastJob(job(one, 100.0 * i), 4_000.0, 500.0) for i, one in enumerate(names)])
    seconds = {"a": 1_000.0, "b": 2_000.0, **dict.fromkeys(names, 500.0)}
    jobs = [job("a", 3_900.0), job("b", 3_950.0)]
    snapshot = paused(cluster(1), jobs, seconds, at_s=4_000.0, past=past)
    options = dict(policy="sjf", horizon_s=20_000.0, samples=20)

    (alone,) = asked(replace(snapshot, past=NO_PAST), ["b"], Known(seconds), **options)
    (behind,) = asked(snapshot, ["b"], Known(seconds), **options)

    assert alone.start.quantile_s(0.5) == 900.0
    assert behind.start.quantile_s(0.1) > 10_000.0  # a job of 500 s arrives every 100 s
    assert (
        "no jobs arrive later: no arrivals of at least an hour are known" in alone.basis.assumptions
    )
    assert (
        "later arrivals repeat random parts of the last 67 minutes, in which 42 jobs were submitted"
        in behind.basis.assumptions
    )


def test_forecasts_are_corrected_by_the_jobs_that_have_ended():
    names = [f"old{i}" for i in range(20)]
    medians = {**dict.fromkeys(names, 100.0), **DURATIONS}
    past = Past(
        [PastJob(job(name, float(i), model="m"), 10.0, 200.0) for i, name in enumerate(names)]
    )
    jobs = [job("a", 30.0, model="m"), job("b", 31.0, model="m"), job("c", 32.0, model="m")]
    snapshot = replace(
        paused(cluster(1), jobs, DURATIONS, at_s=32.0),
        past=replace(past, since_s=math.inf), progress=Progress(),
    )  # fmt: skip
    forecaster = Known(medians, high=2.0)

    without = asked(replace(snapshot, past=NO_PAST), ["b"], forecaster, samples=99)[0]
    with_past = asked(snapshot, ["b"], forecaster, samples=99)[0]

    assert without.start.quantile_s(0.5) == pytest.approx(98.0, rel=0.2)
    assert with_past.start.quantile_s(0.5) == pytest.approx(198.0, rel=0.1)  # twice as long


# Laws -----------------------------------------------------------------------------------------


@settings(max_examples=examples(30), deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 100)), min_size=1, max_size=8),
    more=st.integers(1, 4),
    at_s=st.integers(0, 50),
)
def test_more_gpus_never_start_a_job_later_under_fifo(sizes, more, at_s):
    jobs = [job(f"j{i}", 0.0, gpus=gpus) for i, (gpus, _) in enumerate(sizes)]
    duration_s = {f"j{i}": float(seconds) for i, (_, seconds) in enumerate(sizes)}
    new = Job("new", 0.0, gpus=4)
    known = Known({**duration_s, "new": 10.0})

    def start(gpus: int) -> float:
        snapshot = paused(cluster(gpus), jobs, duration_s, at_s=float(at_s))
        (found,) = asked(snapshot, [new], known, samples=1)
        return float(found.start.quantile_s(0.5))

    assert start(4 + more) <= start(4) + 1e-6


@settings(max_examples=examples(20), deadline=None)
@given(
    seconds=st.lists(st.integers(1, 100), min_size=1, max_size=6),
    high=st.floats(1.01, 5.0),
    policy=st.sampled_from(["fifo", "sjf", "srtf", "backfill", "las"]),
)
def test_quantiles_increase_and_probabilities_follow_them(seconds, high, policy):
    jobs = [job(f"j{i}", 0.0) for i in range(len(seconds))]
    duration_s = {f"j{i}": float(one) for i, one in enumerate(seconds)}
    snapshot = paused(cluster(1), jobs, duration_s, at_s=0.0, policy=policy)
    known = Known({**duration_s, "new": 10.0}, high=high)

    (found,) = asked(snapshot, [Job("new", 0.0)], known, samples=9, policy=policy)

    for times in (found.start, found.end):
        quantiles = [times.quantile_s(i / 20) for i in range(21)]
        assert quantiles == sorted(quantiles)
        assert times.probability_within(quantiles[-1]) == 1.0
    starts, ends = found.start.samples_s, found.end.samples_s
    assert all(end_s >= start_s for start_s, end_s in zip(starts, ends, strict=True))


def test_a_question_changes_nothing_and_has_the_same_answer_again():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)
    options = dict(samples=10, variants=[Variant(), Variant(policy="las"), Variant(gpus=1)])
    known = Known(DURATIONS, high=2.0)

    first = asked(snapshot, ["b", "c"], known, **options)

    assert asked(snapshot, ["b", "c"], known, **options) == first
    assert asked(snapshot, ["b", "c"], known, seed=1, **options) != first


def test_quantiles_of_few_samples_are_those_that_cover():
    times = distribution([float(i) for i in range(1, 10)])

    assert times.quantile_s(0.1) == 1.0
    assert times.quantile_s(0.9) == 9.0  # one of ten further samples is expected above
    assert times.quantile_s(0.95) == 9.0
    assert times.probability_within(4.5) == pytest.approx(4 / 9)


# Unknown and impossible -----------------------------------------------------------------------


def test_a_start_behind_a_job_without_a_forecast_is_unknown():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=5.0)
    silent = replace(snapshot, progress=Progress())

    (second,) = asked(silent, ["b"], Known({"b": 50.0}))

    assert second.verdict is Verdict.UNKNOWN
    assert second.start is second.end is None
    assert "cannot be predicted" in second.why
    assert "a" in second.why


def test_a_start_that_does_not_depend_on_the_job_without_a_forecast_is_known():
    snapshot = paused(cluster(2), QUEUE, DURATIONS, at_s=10.0)
    late = replace(snapshot, progress=Progress())

    (third,) = asked(late, ["c"], Known({"b": 50.0, "c": 30.0}))  # a may run for ever

    assert third.verdict is Verdict.UNKNOWN  # a may also end first
    (running,) = asked(late, ["b"], Known({"b": 50.0, "c": 30.0}))
    assert running.end.quantile_s(0.5) == pytest.approx(41.0)


def test_a_forecast_out_of_domain_is_no_forecast():
    snapshot = replace(paused(cluster(1), QUEUE, DURATIONS, at_s=10.0), progress=Progress())

    second, foreign = asked(snapshot, ["b", "c"], Known(DURATIONS, foreign=["c"]))

    assert second.start.quantile_s(0.5) == 90.0
    assert foreign.start.quantile_s(0.5) == 140.0
    assert foreign.end is None
    assert foreign.why == "its run time is unknown: its forecast is out of domain"


def test_jobs_of_its_class_that_have_run_bring_a_job_into_the_domain():
    past = Past([PastJob(job("old", 0.0, model="m"), 5.0, 35.0)], math.inf)
    jobs = [job("a", 0.0), job("c", 2.0, model="m")]
    snapshot = replace(paused(cluster(1), jobs, DURATIONS, at_s=10.0), past=past)
    known = Known({**DURATIONS, "old": 30.0}, high=1.5, foreign=["c", "old"])

    (found,) = asked(snapshot, ["c"], known)

    assert found.end is not None


@pytest.mark.parametrize("seconds", [1e155, 1e300])
def test_run_times_near_the_largest_number_are_never_over(seconds):
    snapshot = paused(cluster(1), [job("a", 0.0)], {"a": seconds}, at_s=100.0)

    (new,) = asked(snapshot, [job("new")], Known({"a": seconds, "new": 10.0}, high=1e7))

    assert new.start.samples_s == (math.inf,) * 5


def test_infinite_run_times_are_unknown():
    snapshot = replace(paused(cluster(1), QUEUE, DURATIONS, at_s=10.0), progress=Progress())

    (found,) = asked(snapshot, ["b"], Known({**DURATIONS, "a": math.inf}))

    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("variant", "why"),
    [
        (Variant(gpus=3), "the gang needs 3 devices, and the cluster has 2 for it"),
        (Variant(kinds=("h20",)), "the job runs on h20 only, and the cluster has no such device"),
    ],
)
def test_impossible_gangs_and_unknown_kinds_never_start(variant, why):
    snapshot = paused(cluster(2), [job("a", gpus=2), job("b", 1.0)], DURATIONS, at_s=10.0)

    (found,) = asked(snapshot, ["b"], variants=[variant])

    assert found.verdict is Verdict.IMPOSSIBLE
    assert found.why == why
    assert found.start is found.end is None


def test_a_start_beyond_the_horizon_is_infinite_and_has_no_probability():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=5.0)

    (found,) = asked(snapshot, ["b"], horizon_s=60.0)

    assert found.start.quantile_s(0.1) == math.inf
    assert found.start.probability_within(60.0) == 0.0


def test_an_idle_cluster_starts_a_job_at_once():
    (found,) = asked(paused(cluster(1), [], {}, at_s=5.0), [Job("d", 0.0)])

    assert found.start.samples_s == (0.0,) * 5
    assert found.end.quantile_s(0.5) == 20.0


# Wrong questions ------------------------------------------------------------------------------


def test_wrong_questions_are_rejected_by_name():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=5.0)

    with pytest.raises(UnknownJobError, match="job 'missing' neither waits nor runs"):
        asked(snapshot, ["missing"])
    with pytest.raises(InvalidJobError, match="job 'b' exists already"):
        asked(snapshot, [Job("b", 0.0)])
    with pytest.raises(ConfigError, match=f"1,000 variants, must be 1 to {MAX_VARIANTS}"):
        asked(snapshot, ["b"], variants=[Variant(gpus=i + 1) for i in range(1000)])
    with pytest.raises(ConfigError, match="samples=0"):
        asked(snapshot, ["b"], samples=0)
    with pytest.raises(ConfigError, match="horizon_s=inf"):
        asked(snapshot, ["b"], horizon_s=math.inf)
    with pytest.raises(ConfigError, match="horizon_s=nan"):
        asked(snapshot, ["b"], horizon_s=math.nan)
    with pytest.raises(ConfigError, match="policy nice is not known"):
        asked(snapshot, ["b"], variants=[Variant(policy="nice")])
    with pytest.raises(InvalidJobError, match="gpus=0, must be >= 1"):
        asked(snapshot, ["b"], variants=[Variant(gpus=0)])
    with pytest.raises(InvalidJobError, match="share=2"):
        asked(snapshot, ["b"], variants=[Variant(share=2.0)])


# Time limits ----------------------------------------------------------------------------------


def test_a_job_ends_at_its_time_limit_at_the_latest():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)
    snapshot = replace(snapshot, limits_s={"a": 70.0})

    (second,) = asked(snapshot, ["b"])

    assert second.start.quantile_s(0.5) == 30.0


@given(st.floats(41.0, 1e6), st.integers(0, 10))
@settings(max_examples=examples(50), deadline=None)
def test_a_job_without_a_forecast_ends_between_now_and_its_limit(limit_s, seed):
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)
    snapshot = replace(snapshot, limits_s={"a": limit_s})

    (second,) = asked(snapshot, ["b"], Known({"b": 50.0, "c": 30.0}), seed=seed)

    assert second.verdict is Verdict.PREDICTED
    assert all(0 <= start_s <= limit_s - 40 + 1e-6 for start_s in second.start.samples_s)


def test_a_limit_counts_from_each_start():
    # Job a ran for 40 s before its present start, which may last 60 s: it can run for 100 s in all.
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)
    status = snapshot.active["a"]
    again = status._replace(since_s=40.0, attained_s=40.0, attained_at_start_s=40.0)
    snapshot = replace(snapshot, active={"a": again}, limits_s={"a": 60.0}, progress=Progress())

    (second,) = asked(snapshot, ["b"])

    assert second.start.quantile_s(0.5) == 60.0


def test_plans_by_other_run_times_count_from_the_start_of_a_job():
    jobs = [job("a", 0.0), job("b", 1.0, gpus=2), job("c", 2.0)]
    snapshot = paused(cluster(2), jobs, DURATIONS, at_s=40.0, policy="fifo")

    def start_s(limit_s):
        limits = Known({"a": 1000.0, "b": 1000.0, "c": limit_s})
        (answer,) = asked(snapshot, ["c"], policy="backfill", planned_by=limits)
        return answer.start.quantile_s(0.5)

    assert start_s(955.0) == 0.0  # job a is planned to end in 960 s, though its progress is 0.4
    assert start_s(965.0) == 110.0


def test_a_job_that_is_not_simulated_makes_no_start_unknown():
    snapshot = paused(cluster(1), QUEUE, DURATIONS, at_s=40.0)
    other = replace(snapshot.jobs["c"], job_id="closed")
    snapshot = replace(
        snapshot, jobs={**snapshot.jobs, "closed": other}, closed={"closed": "it is held"}
    )

    (second,) = asked(snapshot, ["b"])

    assert second.verdict is Verdict.PREDICTED
    assert sum(second.basis.run_times.values()) == 3


def test_a_policy_may_plan_by_other_run_times_than_the_forecasts():
    jobs = [job("a", 0.0), job("b", 1.0, gpus=2), job("c", 2.0)]
    snapshot = paused(cluster(2), jobs, DURATIONS, at_s=40.0, policy="fifo")
    limits = Known({"a": 1000.0, "b": 1000.0, "c": 500.0})

    by_forecast = asked(snapshot, ["c"], policy="backfill")
    by_limit = asked(snapshot, ["c"], policy="backfill", planned_by=limits)

    assert [one.start.quantile_s(0.5) for one in (*by_forecast, *by_limit)] == [0.0, 0.0]
    late = Known({"a": 100.0, "b": 1000.0, "c": 500.0})
    (behind,) = asked(snapshot, ["c"], policy="backfill", planned_by=late)
    assert behind.start.quantile_s(0.5) == 110.0  # c would delay b by its limit
