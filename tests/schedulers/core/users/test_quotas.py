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
    held, most = {}, Counter()
    for _, what, job_id, more in done.log.entries:
        if what in ("start", "resize", "migrate", "shrink"):
            held[job_id] = sum(one.compute_milli for one in more)
        elif what == "reserve":
            held[job_id] = sum(one.compute_milli for one in more["allocations"])
        elif what in ("finish", "preempt", "overflow", "lost", "expire"):
            held.pop(job_id, None)
        by_user = Counter()
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
    return one.fewest_gpus * max(demands) <= limit
