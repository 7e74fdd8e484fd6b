"""Plans: the builder of decisions that the ledger accepts."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.action import Preempt, Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.job_status import WAITING, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.testing.random_cases import CLUSTERS, traces
from tests.schedulers.clusters import GIB, cluster, job
from tests.support.slow_tests import examples

URGENT = {"latency_sensitive": True}


def ledger_of(devices, jobs, *, running=(), now_s=0.0, ageing_s=math.inf):
    """Return a ledger in which some jobs wait, and some run as given."""
    ledger = Ledger(devices, Queue(lambda one, status: (one.submit_s,)), ageing_s=ageing_s)
    runs = {start.job_id for start in running}
    for one in sorted(jobs, key=lambda one: one.job_id not in runs):
        if one.job_id not in runs and running:
            ledger.apply(list(running), now_s)
            running = ()
        ledger.submit(one, one.submit_s)
    return ledger


def state_of(ledger, now_s=0.0):
    return State(ledger, now_s, Progress())


def test_the_queue_serves_latency_sensitive_jobs_first_under_any_key():
    state = state_of(ledger_of(cluster(1), [job("a"), job("b", 1.0, **URGENT)]))
    assert [one.job_id for one in state.pending] == ["b", "a"]


def test_a_best_effort_job_does_not_get_the_devices_of_a_waiting_urgent_gang():
    devices = cluster(2, 2)
    running = [
        Start("x", (devices.full_allocations[0],)),
        Start("y", (devices.full_allocations[2],)),
    ]
    jobs = [job("x"), job("y"), job("gang", gpus=2, **URGENT), job("small")]
    ledger = ledger_of(devices, jobs, running=running)
    state = state_of(ledger)
    plan = state.plan()
    small = state.job("small")

    # One idle device on each node: the gang is not placed there, but the ledger says that it fits.
    assert not plan.start(state.job("gang"))
    assert not plan.start(small)
    assert plan.start(state.job("gang"), (devices.full_allocations[1], devices.full_allocations[3]))
    assert not plan.start(small)  # nothing is left
    ledger.apply(plan.actions, 0.0)


def test_a_job_that_has_waited_for_the_ageing_time_may_precede():
    jobs = [job("old"), job("urgent", 5.0, **URGENT)]
    for ageing_s, starts in ((math.inf, False), (5.0, True)):
        ledger = ledger_of(cluster(1), jobs, now_s=5.0, ageing_s=ageing_s)
        state = state_of(ledger, 5.0)
        plan = state.plan()
        assert plan.start(state.job("old")) == starts
        ledger.apply(plan.actions, 5.0)


def test_a_plan_rejects_missing_capacity_and_stays_unchanged():
    devices = cluster(1)
    ledger = ledger_of(devices, [job("a"), job("b"), job("c")])
    state = state_of(ledger)
    plan = state.plan()
    half = Allocation(0, 500, 8 * GIB)

    assert plan.start(state.job("a"), (half,))
    assert not plan.start(state.job("b"), (half._replace(compute_milli=501),))
    assert not plan.start(state.job("b"), (half._replace(memory_bytes=9 * GIB),))
    assert not plan.start(state.job("b"))  # no idle device is left
    assert plan.start(state.job("b"), (half,))
    assert not plan.start(state.job("a"), (half,))  # it is started already
    assert plan.capacity.compute_milli.tolist() == [0]
    ledger.apply(plan.actions, 0.0)


def test_a_preemption_frees_devices_for_a_start_and_the_job_may_start_again():
    devices = cluster(2)
    ledger = ledger_of(
        devices,
        [job("a"), job("wide", gpus=2)],
        running=[Start("a", (devices.full_allocations[0],))],
    )
    state = state_of(ledger)
    plan = state.plan()
    assert not plan.start(state.job("wide"))
    assert plan.preempt("a")
    assert not plan.preempt("a")
    assert not plan.preempt("wide")
    assert plan.start(state.job("wide"))
    assert not plan.start(state.job("a"))
    assert plan.actions == [Preempt("a"), Start("wide", devices.full_allocations)]
    ledger.apply(plan.actions, 0.0)


def test_a_preemption_that_turns_an_earlier_start_into_overtaking_is_rejected():
    devices = cluster(2)
    jobs = [job("a"), job("small"), job("gang", gpus=2, **URGENT)]
    ledger = ledger_of(devices, jobs, running=[Start("a", (devices.full_allocations[0],))])
    state = state_of(ledger)
    plan = state.plan()
    assert plan.start(state.job("small"))  # the gang does not fit anyway
    assert not plan.preempt("a")  # now it would
    ledger.apply(plan.actions, 0.0)


@settings(deadline=None, max_examples=examples(300))
@given(made=traces(), devices=CLUSTERS, data=st.data())
def test_the_ledger_accepts_every_plan(made, devices, data):
    jobs, _ = made
    ledger = Ledger(
        devices, Queue(lambda one, status: (one.submit_s,)),
        ageing_s=data.draw(st.sampled_from((math.inf, 4.0))),
    )  # fmt: skip
    for one in jobs:
        ledger.submit(one, one.submit_s)
    now_s = max(one.submit_s for one in jobs)
    for _ in range(3):
        now_s += data.draw(st.sampled_from((0.0, 2.0)))
        state = State(ledger, now_s, Progress())
        plan = state.plan()
        for _ in range(data.draw(st.integers(1, 8))):
            one = state.job(data.draw(st.sampled_from(jobs)).job_id)
            phase = state.status(one.job_id).phase
            if phase is Phase.REJECTED:
                continue
            what = data.draw(st.sampled_from(("whole", "part", "preempt")))
            if what == "preempt":
                plan.preempt(one.job_id)
            elif what == "whole":
                plan.start(one)
            elif phase in WAITING and one.gpus == 1:
                device = data.draw(st.integers(0, devices.devices - 1))
                if not one.kinds or devices.kind_of(device) in one.kinds:
                    plan.start(one, (one.requested(devices.full_allocations[device]),))
        ledger.apply(plan.actions, now_s)
