"""Quotas: no user holds more than its quota, under any policy, and jobs within it all start."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError, ImpossibleActionError
from presage.schedulers.core.action import Start
from presage.schedulers.core.backend import make_ledger
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.users.quota import NO_QUOTAS, Quota, Quotas
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.policy_registry import POLICIES, policy_of
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation
from presage.testing.case import CaseForecaster, can_run
from presage.testing.random_cases import cases
from tests.schedulers.clusters import cluster, job, simulated
from tests.support.slow_tests import examples

NAMES = [name for name in POLICIES if name != "learnt"]  # it needs a release
FOUR = Quotas({"ana": Quota(4)})


def starts_of(done):
    return {entry[2]: entry[0] for entry in reversed(done.log.entries) if entry[1] == "start"}


def most_held_milli(done):
    """Return the most that each user held at once, summed from the log apart from the ledger."""
    held: dict[str, int] = {}
    most: Counter[str] = Counter()
    for _, what, job_id, more in done.log.entries:
        if what in ("start", "resize", "migrate", "shrink"):
            held[job_id] = sum(one.compute_milli for one in more)
        elif what == "reserve":
            held[job_id] = sum(one.compute_milli for one in more["allocations"])
        elif what in ("finish", "preempt", "overflow", "lost", "expire"):
            held.pop(job_id, None)
        by_user: Counter[str] = Counter()
        for one, milli in held.items():
            by_user[done.ledger.jobs[one].user] += milli
        for user, milli in by_user.items():
            most[user] = max(most[user], milli)
    return most


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=examples(60))
@given(
    case=cases(),
    users=st.lists(st.sampled_from(("ana", "bob", "")), min_size=10, max_size=10),
    limits=st.tuples(*[st.sampled_from((0.3, 1.0, 2.5, 4.0))] * 2),
)
def test_no_user_ever_holds_more_than_its_quota(name, case, users, limits):
    quotas = Quotas({"ana": Quota(limits[0]), "": Quota(limits[1])})
    jobs = [replace(one, user=user) for one, user in zip(case.jobs, users, strict=False)]
    done = Simulation(
        case.cluster, policy_of(name), CaseForecaster(case.predictions),
        TraceDurations(case.duration_s), jobs, quotas=quotas,
    )  # fmt: skip
    done.run()
    most = most_held_milli(done)
    assert all(most[user] <= quotas.devices_milli(user) for user in ("ana", "bob"))
    ended = {one.job.job_id: one.phase for one in done.results}
    for one in jobs:  # each ends: it finishes unless it can never run, or never within the quota
        assert ended[one.job_id] is (
            Phase.FINISHED if can_run(one, case.cluster) and fits(one, done, quotas)
            else Phase.REJECTED
        )  # fmt: skip


def fits(one, done, quotas):
    limit = quotas.devices_milli(one.user)
    if limit is None:
        return True
    demands = [
        done.policy.demand(one, kind, done.ledger.cluster, done.forecasts).compute_milli
        for kind in done.ledger.cluster.kinds
        if not one.kinds or kind in one.kinds
    ]
    # The share of a latency-sensitive job may grow to a whole device.
    grows = one.latency_sensitive and done.policy.needs.resizes
    return one.fewest_gpus * (1000 if grows else max(demands)) <= limit


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=examples(25))
@given(case=cases())
def test_a_quota_that_no_user_reaches_changes_no_decision(name, case):
    jobs = [replace(one, user="ana") for one in case.jobs]

    def log(quotas):
        done = Simulation(
            case.cluster, policy_of(name), CaseForecaster(case.predictions),
            TraceDurations(case.duration_s), jobs, quotas=quotas,
        )  # fmt: skip
        done.run()
        return [*done.log.lines()]

    assert log(NO_QUOTAS) == log(Quotas({"ana": Quota(1000)}))


def test_a_job_above_the_quota_waits_and_lets_others_pass():
    jobs = [job(f"a{i}", user="ana", gpus=2) for i in range(3)] + [job("b", 1.0, user="bob")]
    done = simulated(cluster(8), Fifo(), jobs, dict.fromkeys(("a0", "a1", "a2", "b"), 10.0),
                     quotas=FOUR)  # fmt: skip
    assert starts_of(done) == {"a0": 0.0, "a1": 0.0, "b": 1.0, "a2": 10.0}


def test_a_job_that_does_not_fit_the_rest_of_the_quota_is_skipped():
    jobs = [job("a", user="ana", gpus=3), job("wide", user="ana", gpus=2), job("s", user="ana")]
    done = simulated(cluster(8), Fifo(), jobs, {"a": 10.0, "wide": 10.0, "s": 20.0}, quotas=FOUR)
    assert starts_of(done) == {"a": 0.0, "s": 0.0, "wide": 10.0}


def test_parts_of_devices_count_as_such():
    jobs = [job(f"a{i}", user="ana", compute_milli=300) for i in range(4)]
    done = simulated(cluster(4), policy_of("bin-packing"), jobs,
                     dict.fromkeys(("a0", "a1", "a2", "a3"), 10.0),
                     quotas=Quotas({"": Quota(0.6)}))  # fmt: skip
    assert starts_of(done) == {"a0": 0.0, "a1": 0.0, "a2": 10.0, "a3": 10.0}


def test_a_job_that_can_never_fit_is_rejected_and_says_how_to_fix_it():
    done = simulated(cluster(8), Fifo(), [job("a", user="ana", gpus=5)], {"a": 1.0}, quotas=FOUR)
    (reason,) = [more for _, what, _, more in done.log.entries if what == "reject"]
    assert reason == (
        "it needs 5 devices at once, and the quota of user 'ana' is 4 devices; request fewer, or "
        "ask an administrator for a larger quota"
    )


def test_elastic_jobs_divide_the_quota_evenly_and_do_not_grow_beyond_it():
    jobs = [job(f"a{i}", user="ana", gpus=2, min_gpus=1, max_gpus=8) for i in range(2)]
    done = simulated(cluster(16), policy_of("elastic"), jobs, {"a0": 30.0, "a1": 90.0},
                     quotas=FOUR)  # fmt: skip
    sizes = [(at_s, job_id, len(more)) for at_s, what, job_id, more in done.log.entries
             if what in ("start", "resize")]  # fmt: skip
    assert sizes[:2] == [(0.0, "a0", 2), (0.0, "a1", 2)]
    assert (sizes[-1][1], sizes[-1][2]) == ("a1", 4)  # once the other has ended
    assert most_held_milli(done)["ana"] == 4000


def test_jobs_without_a_user_have_no_quota():
    done = simulated(cluster(8), Fifo(), [job("a", gpus=8)], {"a": 1.0},
                     quotas=Quotas({"": Quota(2)}))  # fmt: skip
    assert starts_of(done) == {"a": 0.0}


def test_the_ledger_rejects_a_start_beyond_the_quota():
    devices = cluster(4)
    ledger = make_ledger(devices, Fifo(), Forecasts(NoForecasts(), devices),
                         quotas=Quotas({"ana": Quota(1)}))  # fmt: skip
    for name in ("a", "b"):
        assert ledger.submit(job(name, user="ana"), 0.0) == ""
    whole = devices.full_allocations
    with pytest.raises(ImpossibleActionError, match="user 'ana' would hold 2 devices, and its quo"):
        ledger.apply([Start("a", (whole[0],)), Start("b", (whole[1],))], 0.0)
    assert [one.job_id for one in ledger.pending] == ["a"]
    ledger.apply([Start("a", (whole[0],))], 0.0)
    assert [*ledger.pending] == []
    assert ledger.held_milli == {"ana": 1000}


@pytest.mark.parametrize("devices", [-1.0, math.nan, math.inf, 1e7])
def test_wrong_numbers_of_devices_are_refused(devices):
    with pytest.raises(ConfigError, match="must be within 0 and 1,000,000"):
        Quota(devices)


@pytest.mark.parametrize("weight", [0.0, -2.0, math.nan, math.inf, 1e7])
def test_wrong_weights_are_refused(weight):
    with pytest.raises(ConfigError, match=r"must be within 0\.000001 and 1,000,000"):
        Quota(weight=weight)


def test_own_numbers_precede_those_of_the_default():
    quotas = Quotas({"": Quota(8, 2.0), "ana": Quota(weight=3.0), "bob": Quota(1)})
    assert [quotas.devices_milli(user) for user in ("ana", "bob", "cyd", "")] == [8000, 1000, 8000,
                                                                                None]  # fmt: skip
    assert [quotas.weight(user) for user in ("ana", "bob", "cyd")] == [3.0, 2.0, 2.0]
