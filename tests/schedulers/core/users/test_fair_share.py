"""Fair share: decayed use is exact, and users with less of it per weight go first."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage import simulate
from presage.errors import ConfigError
from presage.schedulers.cluster_files.quota_file import read_quotas
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.users.decayed_use import DecayedUse
from presage.schedulers.core.users.fair_queue import FairQueue
from presage.schedulers.core.users.quota import NO_QUOTAS, Quota, Quotas
from presage.schedulers.policies.policy_registry import POLICIES, policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.results.user_metrics import compute_user_metrics
from presage.schedulers.simulator.simulation import Simulation
from presage.testing import check_policy
from presage.testing.case import CaseForecaster, can_run
from presage.testing.random_cases import cases
from tests.schedulers.clusters import cluster, job, simulated
from tests.support.slow_tests import examples

OWN_ORDER = {"srtf", "las", "elastic", "pollux", "expected", "learnt"}
NAMES = [name for name in POLICIES if name not in OWN_ORDER]
TIMES = st.lists(st.floats(0.0, 1e5), min_size=1, max_size=8)


def starts_of(done):
    return {entry[2]: entry[0] for entry in reversed(done.log.entries) if entry[1] == "start"}


@given(
    half_life_s=st.floats(1.0, 1e6),
    held=st.lists(st.tuples(st.floats(0.0, 1e5), st.integers(0, 64_000)), min_size=1, max_size=6),
    updates=TIMES,
)
def test_decayed_use_does_not_depend_on_how_often_it_is_updated(half_life_s, held, updates):
    changes = sorted(held)
    once, often = DecayedUse(half_life_s), DecayedUse(half_life_s)
    for at_s, milli in changes:
        once.set_held("ana", milli, at_s)
    current = 0
    for at_s, milli in sorted([*changes, *((at_s, None) for at_s in updates)], key=lambda x: x[0]):
        current = current if milli is None else milli
        often.set_held("ana", current, at_s)
    end_s = max(changes[-1][0], *updates) + half_life_s
    assert often.at("ana", end_s) == pytest.approx(once.at("ana", end_s), rel=1e-9, abs=1e-9)


@given(half_life_s=st.floats(1.0, 1e6), milli=st.integers(1, 64_000), time_s=st.floats(0.0, 1e6))
def test_decayed_use_is_at_most_the_use_and_at_most_its_limit(half_life_s, milli, time_s):
    use = DecayedUse(half_life_s)
    use.set_held("ana", milli, 0.0)
    devices, found = milli / 1000, use.at("ana", time_s)
    assert found <= devices * time_s * (1 + 1e-9) + 1e-9
    assert found <= devices * half_life_s / math.log(2) * (1 + 1e-9)


def test_use_counts_half_after_each_half_life():
    use = DecayedUse(100.0)
    use.set_held("ana", 2000, 0.0)
    use.set_held("ana", 0, 100.0)
    first = use.at("ana", 100.0)
    assert first == pytest.approx(2 * 100 / math.log(2) / 2)
    assert [use.at("ana", 200.0), use.at("ana", 400.0)] == pytest.approx([first / 2, first / 8])
    use.change_half_life(10.0, 200.0)
    assert use.at("ana", 210.0) == pytest.approx(first / 4)
    assert use.per_weight(Quotas({"ana": Quota(weight=4.0)}), 200.0) == {
        "ana": pytest.approx(first / 8)
    }


def test_one_user_who_floods_the_queue_does_not_delay_others():
    flood = [job(f"a{i}", user="ana") for i in range(40)]
    others = [job("b", 1.0, user="bob"), job("c", 2.0, user="cyd", gpus=2)]
    runtimes = {one.job_id: 10.0 for one in (*flood, *others)}
    plain = simulated(cluster(4), policy_of("fifo"), [*flood, *others], runtimes)
    fair = simulated(cluster(4), policy_of("fifo:fair_share_s=3600"), [*flood, *others], runtimes)
    assert {name: starts_of(plain)[name] for name in "bc"} == {"b": 100.0, "c": 100.0}
    assert {name: starts_of(fair)[name] for name in "bc"} == {"b": 10.0, "c": 10.0}
    metrics = compute_user_metrics(fair)
    assert {user: one.longest_wait_s for user, one in metrics.items()} == {
        "ana": 100.0, "bob": 9.0, "cyd": 8.0,
    }  # fmt: skip
    assert metrics["ana"].device_share == pytest.approx(400 / 430)


def test_weights_divide_the_devices_in_their_ratio_while_both_users_wait():
    jobs = [job(f"{user}{i}", user=user) for user in ("ana", "bob") for i in range(60)]
    done = simulated(cluster(1), policy_of("fifo:fair_share_s=1000000"), jobs,
                     {one.job_id: 1.0 for one in jobs},
                     quotas=Quotas({"ana": Quota(weight=2.0)}))  # fmt: skip
    first = sorted(starts_of(done).items(), key=lambda item: item[1])[:60]
    assert sum(name.startswith("ana") for name, _ in first) == 40


def test_priority_precedes_fair_share():
    jobs = [job("a0", user="ana", gpus=4), job("a1", 1.0, user="ana", gpus=4, priority=1),
            job("b", 2.0, user="bob", gpus=4)]  # fmt: skip
    done = simulated(cluster(4), policy_of("sjf:fair_share_s=100"), jobs,
                     {"a0": 10.0, "a1": 10.0, "b": 10.0})  # fmt: skip
    assert starts_of(done) == {"a0": 0.0, "a1": 10.0, "b": 20.0}


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("xyz"), st.integers(0, 1), st.integers(1, 3), st.booleans()),
        min_size=1, max_size=12,
    ),
    use=st.dictionaries(st.sampled_from("xyz"), st.sampled_from((0.0, 1.0, 2.5))),
)  # fmt: skip
def test_the_queue_is_sorted_by_class_priority_use_and_key_in_all_of_its_views(rows, use):
    queue, jobs = FairQueue(lambda job, status: (-job.gpus,)), []
    for i, (user, priority, gpus, urgent) in enumerate(rows):
        one = job(str(i), user=user, priority=priority, gpus=gpus, latency_sensitive=urgent)
        queue.add(one, JobStatus(Phase.PENDING, 0.0))
        jobs.append(one)
    for removed in jobs[3:5]:
        queue.remove(removed.job_id)
    queue.use = use
    left = [one for one in jobs if one.job_id in queue]
    expected = sorted(
        left,
        key=lambda one: (
            not one.latency_sensitive, -one.priority, use.get(one.user, 0.0), -one.gpus,
            int(one.job_id),
        ),
    )  # fmt: skip
    assert [*queue] == [*queue.cursor()] == expected
    assert len(queue) == len(expected)
    assert queue.first() == (expected[0] if expected else None)
    assert [*queue.jobs_up_to(2)] == [one for one in expected if one.gpus <= 2]
    keys = {one.workload_key for one in left}
    assert {*queue.workload_keys(99)} == {one.workload_key for one in left if one.gpus == 1}
    singles = dict.fromkeys(one.workload_key for one in expected if one.gpus == 1)
    assert [*queue.workload_keys(1)] == [*singles][:1]
    for key in keys:
        assert queue.representative(key).workload_key == key
        assert [*queue.cursor([key])] == [one for one in expected if one.workload_key == key]
    assert {*queue.latency_sensitive_keys()} == {
        one.workload_key for one in left if one.latency_sensitive
    }


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=examples(25))
@given(case=cases(), users=st.lists(st.sampled_from(("ana", "bob")), min_size=10, max_size=10))
def test_fair_share_starves_no_user_and_of_one_user_changes_no_decision(name, case, users):
    def run(policy, jobs):
        done = Simulation(
            case.cluster, policy_of(policy), CaseForecaster(case.predictions),
            TraceDurations(case.duration_s), jobs,
        )  # fmt: skip
        done.run()
        return done

    jobs = [replace(one, user=user) for one, user in zip(case.jobs, users, strict=False)]
    ended = {one.job.job_id: one.phase for one in run(f"{name}:fair_share_s=5", jobs).results}
    for one in jobs:
        expected = Phase.FINISHED if can_run(one, case.cluster) else Phase.REJECTED
        assert ended[one.job_id] is expected
    fair = run(f"{name}:fair_share_s=5", case.jobs).log.lines()
    assert [*fair] == [*run(name, case.jobs).log.lines()]


def test_a_policy_with_fair_share_keeps_the_contract():
    check_policy("backfill:fair_share_s=10", examples=examples(50))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srtf:fair_share_s=10", "policy 'srtf' orders jobs itself"),
        ("elastic:fair_share_s=10", "policy 'elastic' orders jobs itself"),
        ("expected:fair_share_s=10", "policy 'expected' orders jobs itself"),
        ("fifo:fair_share_s=0", "must be a half-life within 1 and 1e"),
        ("fifo:fair_share_s=nan", "must be a finite number"),
        ("fifo:fair_share_s=week", "must be a float"),
        ("fifo:fair_share_s=5:fair_share_s=6", "fair_share_s is given twice"),
        ("backfill:fair_share_s=5:reserve=some", "reserve=some, must be one of first, all"),
    ],
)
def test_wrong_parameters_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        policy_of(text)


def test_the_example_of_the_guide_has_its_waits():
    def longest_min(policy, quotas=NO_QUOTAS):
        done = simulate("examples/users_trace.csv", "examples/cluster.yaml", policy, quotas=quotas)
        waits = compute_user_metrics(done.simulation).values()
        busy = done.metrics.device_utilization
        assert busy is not None
        return [round(one.longest_wait_s / 60) for one in waits], round(100 * busy)

    assert longest_min("fifo") == ([420, 435, 430], 100)
    assert longest_min("fifo:fair_share_s=86400") == ([540, 15, 10], 100)
    assert longest_min("fifo", read_quotas(Path("examples/quotas.yaml"))) == ([870, 30, 25], 63)
