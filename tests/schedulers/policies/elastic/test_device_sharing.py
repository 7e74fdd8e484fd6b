"""Elastic jobs that share devices: requirement S4, and what sharing never does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.job_status import Phase
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.elastic.device_shares import Sharer, divide_device
from presage.schedulers.policies.elastic.elastic_policy import Elastic
from presage.schedulers.policies.elastic.pollux_policy import Pollux
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.testing.random_cases import CLUSTERS
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.support.slow_tests import examples

CAPACITY = 16 * GIB


class Measured(TraceDurations):
    """Ground truth with a memory for each model, and slowdowns by the number of jobs."""

    def __init__(self, duration_s, gib, slowdown=1.2, milli=400):
        super().__init__(duration_s)
        self._gib, self._slowdown, self._milli = gib, slowdown, milli

    def compute_milli(self, job, kind):
        return self._milli

    def memory_bytes(self, job, kind):
        return self._gib[job.model] * GIB

    def fits(self, kind, memory_bytes, members):
        return sum(self.memory_bytes(one, kind) for one in members) <= memory_bytes

    def slowdowns(self, kind, members):
        return (1 + (self._slowdown - 1) * (len(members) - 1),) * len(members)


def small(name, submit_s=0.0, model="m", **more):
    """Return a job of one device that can grow."""
    return job(name, submit_s, model=model, **({"max_gpus": 2} | more))


def shares(done, job_id):
    """Return what a job has had: time, and compute and memory of each device."""
    return [
        (at_s, {one.device: (one.compute_milli, one.memory_bytes) for one in details})
        for at_s, event, name, details in done.log.entries
        if name == job_id and event in ("start", "resize")
    ]


def events(done, job_id):
    return [event for _, event, name, _ in done.log.entries if name == job_id]


def run(jobs, gib, *, devices=None, policy=None, durations=None, **truth):
    durations = durations or {one.job_id: 100.0 for one in jobs}
    policy = policy or Elastic(hold_s=0.0, jobs_per_device=2)
    return simulated(devices or cluster(1), policy, jobs, Measured(durations, gib, **truth))


# Worked examples ------------------------------------------------------------------------------


def test_s4_the_first_job_has_all_memory_the_second_half_and_the_third_waits():
    done = run([small("a"), small("b", 10.0), small("c", 20.0)], {"m": 3})

    first, cut, *_ = shares(done, "a")
    assert first == (0.0, {0: (1000, CAPACITY)})
    assert cut == (10.0, {0: (500, CAPACITY // 2)})
    assert shares(done, "b")[0] == (10.0, {0: (500, CAPACITY // 2)})
    a_end_s = next(one.end_s for one in done.results if one.job.job_id == "a")
    assert a_end_s == pytest.approx(10 + 90 * 1.2)
    assert shares(done, "c")[0] == (a_end_s, {0: (500, CAPACITY // 2)})


def test_s4_a_share_is_never_below_the_bound():
    done = run([small("a", model="large"), small("b", 10.0)], {"large": 11, "m": 4})

    assert shares(done, "a")[1] == (10.0, {0: (500, 11 * GIB)})
    assert shares(done, "b")[0] == (10.0, {0: (500, 5 * GIB)})


def test_s4_a_job_waits_if_the_bounds_do_not_fit_together():
    done = run([small("a", model="large"), small("b", 10.0)], {"large": 13, "m": 4})

    assert shares(done, "a") == [(0.0, {0: (1000, CAPACITY)})]
    assert shares(done, "b") == [(100.0, {0: (1000, CAPACITY)})]


def test_s4_the_share_grows_back_when_the_other_job_leaves():
    durations = {"a": 1000.0, "b": 100.0}
    done = run([small("a"), small("b", 10.0, priority=-1)], {"m": 3}, durations=durations)

    b_end_s = 10 + 100 * 1.2
    assert shares(done, "a")[-1] == (pytest.approx(b_end_s), {0: (1000, CAPACITY)})
    assert events(done, "a") == ["submit", "start", "resize", "resize", "finish"]
    assert events(done, "b") == ["submit", "start", "finish"]


def test_a_new_job_does_not_preempt_a_longer_one_that_can_share():
    durations = {"long": 1000.0, "short": 100.0}
    done = run([small("long"), small("short", 10.0)], {"m": 3}, durations=durations)

    assert done.preemptions == 0
    assert shares(done, "short")[0] == (10.0, {0: (500, CAPACITY // 2)})


def test_a_device_may_have_three_jobs():
    policy = Elastic(jobs_per_device=3)
    done = run([small(name) for name in "abcd"], {"m": 3}, policy=policy, slowdown=1.1)

    starts = [shares(done, name)[0] for name in "abcd"]
    assert [at_s for at_s, _ in starts][:3] == [0.0] * 3
    assert starts[3][0] > 0.0
    third = pytest.approx(CAPACITY / 3, abs=1)
    assert [part[0][1] for _, part in starts][:3] == [third] * 3


def test_idle_devices_are_preferred_and_shared_jobs_move_to_them():
    jobs = [small("a"), small("b"), small("c", 10.0)]
    durations = {"a": 30.0, "b": 500.0, "c": 500.0}
    done = run(jobs, {"m": 3}, devices=cluster(2), durations=durations)

    assert {device for _, part in shares(done, "a") for device in part} == {0}
    assert {device for _, part in shares(done, "b") for device in part} >= {1}
    (at_s, guest), *later = shares(done, "c")
    assert at_s == 10.0 and len(guest) == 1
    assert later  # once a has ended, two jobs have two devices
    last = {name: shares(done, name)[-1][1] for name in "bc"}
    assert all(part[0] == 1000 for each in last.values() for part in each.values())


def test_fewer_workers_have_more_samples_each_and_a_larger_bound():
    wide = job("wide", 10.0, gpus=4, min_gpus=1, model="m")
    done = run([small("a", priority=1), wide], {"m": 4}, durations={"a": 100.0, "wide": 100.0})

    assert shares(done, "wide")[0][0] == 100.0  # on one device it may need four times 4 GiB


# Which jobs share a device ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        small("b", 10.0, latency_sensitive=True, priority=-1),
        job("b", 10.0, model="m", priority=-1),  # of a fixed size
        job("b", 10.0, model="m", priority=-1, gpus=2, min_gpus=2, gpus_per_task=2, max_gpus=4),
    ],
)
def test_urgent_jobs_and_jobs_of_a_fixed_size_have_devices_of_their_own(other):
    done = run([small("a"), other], {"m": 3}, devices=cluster(2 if other.gpus > 1 else 1))

    parts = [part for name in "ab" for _, each in shares(done, name) for part in each.values()]
    assert set(parts) == {(FULL_DEVICE_MILLI, CAPACITY)}


def test_a_latency_sensitive_job_takes_the_device_that_others_share():
    jobs = [small("a"), small("b", 10.0), small("urgent", 20.0, latency_sensitive=True)]
    done = run(jobs, {"m": 3})

    assert shares(done, "urgent") == [(20.0, {0: (1000, CAPACITY)})]
    assert done.preemptions == 2


def test_no_job_joins_others_while_a_latency_sensitive_job_waits():
    urgent = job("urgent", 5.0, gpus=2, latency_sensitive=True, compute_milli=300)
    first = job("first", 0.0, latency_sensitive=True, priority=1)
    jobs = [first, small("a"), urgent, small("b", 10.0)]
    durations = {"first": 50.0, "a": 200.0, "urgent": 10.0, "b": 400.0}
    done = run(jobs, {"m": 3, "": 1}, devices=cluster(2), durations=durations)

    assert shares(done, "urgent")[0][0] == 50.0
    assert shares(done, "b")[0][0] == 60.0


@pytest.mark.parametrize(("slowdown", "shared"), [(1.4, True), (1.6, False)])
def test_jobs_share_only_if_their_predicted_slowdown_is_small(slowdown, shared):
    done = run([small("a"), small("b", 10.0)], {"m": 3}, slowdown=slowdown)

    assert (shares(done, "b")[0][0] == 10.0) is shared


def test_a_wide_job_is_not_slowed_down_in_favour_of_a_small_one():
    wide = job("wide", gpus=8, max_gpus=9, model="m", priority=1)
    jobs = [wide, small("a", 10.0, max_gpus=2)]
    durations = {"wide": 100.0, "a": 100.0}
    fast = run(jobs, {"m": 3}, devices=cluster(8), durations=durations, slowdown=1.1)
    slow = run(jobs, {"m": 3}, devices=cluster(8), durations=durations, slowdown=1.3)

    assert shares(fast, "a")[0][0] == 10.0  # 8 devices lose 0.7, and one does 0.9
    assert shares(slow, "a")[0][0] == 100.0


def test_without_forecasts_no_jobs_share():
    jobs = [small("a"), small("b", 10.0)]
    truth = Measured({"a": 100.0, "b": 100.0}, {"m": 3})
    policy = Elastic(jobs_per_device=2)
    done = simulated(cluster(1), policy, jobs, truth, forecaster=NoForecasts())

    assert shares(done, "b")[0] == (100.0, {0: (1000, CAPACITY)})


def test_a_job_that_ran_out_of_memory_gets_a_device_of_its_own():
    class TooLow(Measured):
        def fits(self, kind, memory_bytes, members):
            return len(members) == 1

        def slowdowns(self, kind, members):
            return (1.2,) * len(members)

    class Hopeful:
        def __init__(self, truth):
            self._truth = truth

        def predictions(self, requests):
            from presage.schedulers.core.forecasts import RuntimePrediction

            return [RuntimePrediction(100.0, 400, 3 * GIB)] * len(requests)

        def slowdowns(self, requests):
            return [(1.2,) * len(jobs) for _, jobs in requests]

    truth = TooLow({"a": 100.0, "b": 100.0}, {"m": 3})
    jobs = [small("a"), small("b", 10.0)]
    done = simulated(cluster(1), Elastic(jobs_per_device=2), jobs, truth, forecaster=Hopeful(truth))

    assert "overflow" in events(done, "b")
    assert shares(done, "b")[-1][1] == {0: (1000, CAPACITY)}
    assert {one.phase for one in done.results} == {Phase.FINISHED}


@pytest.mark.parametrize("values", [{"jobs_per_device": 0}, {"most_slowdown": 0.9}])
def test_an_invalid_parameter_is_rejected(values):
    with pytest.raises(ConfigError, match="must be a finite number >= 1"):
        Elastic(**values)


def test_the_policy_declares_that_jobs_share():
    assert Elastic().needs.most_members == 1
    assert Elastic(jobs_per_device=3).needs.most_members == 3


# Laws -----------------------------------------------------------------------------------------

SIZES = st.sampled_from(((1, 1, 2), (1, 2, 4), (2, 4, 4), (2, 2, 2), (1, 1, 1)))


@st.composite
def elastic_traces(draw):
    """Return jobs, their run times and the memory of their models."""
    jobs, durations = [], {}
    for i in range(draw(st.integers(1, 8))):
        least, gpus, most = draw(SIZES)
        name = str(i)
        jobs.append(
            job(
                name,
                draw(st.sampled_from((0.0, 5.0, 30.0, 90.0))),
                gpus=gpus,
                min_gpus=least,
                max_gpus=most,
                model=draw(st.sampled_from("ab")),
                priority=draw(st.sampled_from((0, 0, 1))),
                latency_sensitive=draw(st.sampled_from((False, False, False, True))),
                compute_milli=draw(st.sampled_from((1000, 1000, 300))),
            )
        )
        durations[name] = draw(st.sampled_from((1.0, 20.0, 100.0)))
    gib = {model: draw(st.sampled_from((1, 3, 6, 9, 11))) for model in "ab"}
    return sorted(jobs, key=lambda one: one.submit_s), durations, gib


@settings(deadline=None, max_examples=examples(200))
@given(
    made=elastic_traces(),
    devices=CLUSTERS,
    per_device=st.integers(2, 4),
    slowdown=st.sampled_from((1.0, 1.1, 1.3, 1.6)),
    policy=st.sampled_from((Elastic, Pollux)),
    hold_s=st.sampled_from((0.0, 10.0)),
)
def test_s4_laws_of_shares(made, devices, per_device, slowdown, policy, hold_s):
    jobs, durations, gib = made
    policy = policy(hold_s=hold_s, jobs_per_device=per_device)
    truth = Measured(durations, gib, slowdown=slowdown)
    done = simulated(devices, policy, jobs, truth)

    by_id, held = {one.job_id: one for one in jobs}, dict[str, tuple[Allocation, ...]]()
    for _, event, name, details in done.log.entries:
        assert event not in ("overflow", "refused")
        if event == "decide":
            check_shares(held, by_id, devices, gib, per_device)
        elif event in ("start", "resize"):
            held[name] = details
        elif event in ("finish", "preempt"):
            held.pop(name, None)
    ended = [one for one in done.results if one.phase is Phase.FINISHED]
    assert len(ended) + sum(one.phase is Phase.REJECTED for one in done.results) == len(jobs)


def check_shares(held, by_id, devices, gib, per_device):
    on: dict[int, list[tuple[str, Allocation]]] = {}
    for name, allocations in held.items():
        for one in allocations:
            on.setdefault(one.device, []).append((name, one))
    for device, rows in on.items():
        full = devices.full_allocations[device]
        assert len(rows) <= per_device
        assert sum(one.memory_bytes for _, one in rows) <= full.memory_bytes
        assert sum(one.compute_milli for _, one in rows) <= FULL_DEVICE_MILLI
        for name, one in rows:
            spec = by_id[name]
            if len(rows) > 1:
                assert spec.is_elastic and not spec.latency_sensitive
                size = len(held[name])
                assert one.memory_bytes >= gib[spec.model] * GIB * max(1, spec.gpus / size)


@settings(deadline=None, max_examples=examples(100))
@given(made=elastic_traces(), devices=CLUSTERS, policy=st.sampled_from((Elastic, Pollux)))
def test_one_job_per_device_is_the_default_and_allocates_whole_devices(made, devices, policy):
    jobs, durations, gib = made
    truth = Measured(durations, gib)
    default = simulated(devices, policy(), jobs, truth)
    one = simulated(devices, policy(jobs_per_device=1), jobs, truth)

    assert [*one.log.lines()] == [*default.log.lines()]
    whole = {*devices.full_allocations}
    for _, event, _, details in one.log.entries:
        assert event not in ("start", "resize") or {*details} <= whole


@settings(deadline=None, max_examples=examples(50))
@given(made=elastic_traces(), devices=CLUSTERS)
def test_jobs_that_would_slow_each_other_down_have_whole_devices(made, devices):
    jobs, durations, gib = made
    truth = Measured(durations, gib, slowdown=math.inf)
    done = simulated(devices, Elastic(jobs_per_device=2), jobs, truth)

    whole = {*devices.full_allocations}
    for _, event, _, details in done.log.entries:
        assert event not in ("start", "resize") or {*details} <= whole
    assert not done.ledger.was_shared


# Division of a device -------------------------------------------------------------------------


@given(
    capacity=st.integers(0, 100),
    bounds=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 1000)), min_size=1, max_size=5),
    fixed=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 40)), max_size=2),
)
def test_s4_a_divided_device_holds_all_jobs_at_their_bounds(capacity, bounds, fixed):
    full = Allocation(3, FULL_DEVICE_MILLI, capacity)
    kept = [Sharer(0, 1, Allocation(3, milli, memory)) for milli, memory in fixed]
    found = divide_device(full, [*kept, *(Sharer(*row) for row in bounds)])

    needed = sum(bound for bound, _ in bounds) + sum(memory for _, memory in fixed)
    assert (found is not None) == (needed <= capacity)
    if found is not None:
        assert found[: len(kept)] == [one.fixed for one in kept]
        assert sum(one.memory_bytes for one in found) <= capacity
        assert sum(one.compute_milli for one in found) == FULL_DEVICE_MILLI
        for one, (bound, _) in zip(found[len(kept) :], bounds, strict=True):
            assert one.memory_bytes >= bound and one.compute_milli >= 1
