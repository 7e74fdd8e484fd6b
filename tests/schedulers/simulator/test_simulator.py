"""The simulator is exact: published figures, queueing theory, laws, and logs that replay."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.action import Pause, Preempt, Reserve, Resize, Resume, Start, Wake
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.faults.fault import Fault
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.policy_registry import POLICIES, policy_of
from presage.schedulers.policies.shortest_first import ShortestFirst
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.resize_costs import ResizeCosts
from presage.schedulers.simulator.results.timeline import make_timeline
from presage.schedulers.simulator.simulation import OVERFLOW_S
from presage.schedulers.traces.formats import read_trace
from tests.pipelines.public_files import real
from tests.schedulers.clusters import GIB, cluster, job, simulated


def average_jct_s(simulation):
    return sum(one.end_s - one.job.submit_s for one in simulation.results) / len(simulation.results)


@pytest.mark.parametrize(("policy", "published_s"), [(Fifo, 796_881.0), (ShortestFirst, 388_986.4)])
def test_a_philly_cluster_has_the_results_of_other_simulators(policy, published_s):
    trace = read_trace(real("traces") / "gavel_philly/vc_0e4a51.csv")
    done = simulated(cluster(*[8] * 8), policy(), trace.jobs, trace.duration_s)

    assert round(average_jct_s(done), 1) == published_s


def queue_of(rng: Random, load: float, service_s, count: int = 60_000):
    """Return Poisson arrivals at one device with a mean service time of 1 s."""
    now_s, jobs, ground_truth = 0.0, [], {}
    for i in range(count):
        now_s += rng.expovariate(load)
        jobs.append(job(str(i), now_s))
        ground_truth[str(i)] = service_s(rng)
    return jobs, ground_truth


@pytest.mark.parametrize(
    ("name", "service_s", "mean_s"),
    [
        ("M/M/1", lambda rng: rng.expovariate(1.0), lambda load: 1 / (1 - load)),
        ("M/D/1", lambda rng: 1.0, lambda load: 1 + load / (2 * (1 - load))),
    ],
)
def test_one_device_is_an_m_m_1_queue(name, service_s, mean_s):
    load = 0.7
    jobs, ground_truth = queue_of(Random(1), load, service_s)
    done = simulated(cluster(1), Fifo(), jobs, ground_truth)

    assert average_jct_s(done) == pytest.approx(mean_s(load), rel=0.03)


@st.composite
def traces(draw, most_gpus: int = 4):
    """Draw jobs by submission, with their run times."""
    count = draw(st.integers(1, 12))
    now_s, jobs, ground_truth = 0.0, [], {}
    for i in range(count):
        now_s += draw(st.sampled_from((0.0, 1.0, 7.0)))
        jobs.append(job(f"j{i}", now_s, gpus=draw(st.integers(1, most_gpus))))
        ground_truth[f"j{i}"] = draw(st.sampled_from((1.0, 2.0, 5.0, 40.0)))
    return jobs, ground_truth


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None)
@given(trace=traces())
def test_laws_of_every_policy(name, trace):
    jobs, ground_truth = trace
    devices = cluster(2, 2)
    done = simulated(devices, policy_of(name), jobs, ground_truth)
    work_s = sum(ground_truth[one.job_id] * one.gpus for one in jobs)
    makespan_s = max(one.end_s for one in done.results)

    assert {one.job.job_id for one in done.results} == ground_truth.keys()
    assert all(one.phase is Phase.FINISHED for one in done.results)
    assert all(
        one.end_s - one.job.submit_s >= ground_truth[one.job.job_id] - 1e-9 for one in done.results
    )
    assert makespan_s >= work_s / devices.devices
    assert sum(one.status.attained_s for one in done.results) == pytest.approx(work_s)
    again = simulated(devices, policy_of(name), jobs, ground_truth)
    assert list(again.log.lines()) == list(done.log.lines())


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None)
@given(trace=traces(), times=st.sampled_from((2.0, 0.25, 1024.0)))
def test_scaling_time_scales_every_completion(name, trace, times):
    jobs, ground_truth = trace
    scaled = {
        "pollux": f"pollux:hold_s={60 * times}",
        "elastic": f"elastic:hold_s={60 * times}",
        "las": f"las:threshold_s={3600 * times}",
        "gang": f"gang:expiry_s={600 * times}:backoff_s={60 * times}",
    }.get(name, name)
    done = simulated(cluster(2, 2), policy_of(name), jobs, ground_truth)
    slower = simulated(
        cluster(2, 2), policy_of(scaled),
        [job(one.job_id, times * one.submit_s, gpus=one.gpus) for one in jobs],
        {job_id: times * seconds for job_id, seconds in ground_truth.items()},
    )  # fmt: skip

    assert [one.end_s * times for one in done.results] == pytest.approx(
        [one.end_s for one in slower.results]
    )


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None)
@given(trace=traces())
def test_littles_law(name, trace):
    """Mean jobs in the system equal arrival rate times mean time in it.

    The first by what the ledger holds at each event, the second by what became of the jobs.
    """
    jobs, ground_truth = trace
    seen: list[tuple[float, int]] = []

    class Counts(Policy):
        def __init__(self):
            self.policy = policy_of(name)
            self.needs = self.policy.needs

        def key(self, job, status, forecasts):
            return self.policy.key(job, status, forecasts)

        def decide(self, state, forecasts, rng):
            there = len(state.pending) + len(state.reserved) + len(state.running)
            seen.append((state.now_s, there))
            return self.policy.decide(state, forecasts, rng)

    done = simulated(cluster(2, 2), Counts(), jobs, ground_truth)
    area = sum(inside * (until_s - at_s) for (at_s, inside), (until_s, _) in pairwise(seen))

    assert seen[-1] == (done.results[-1].end_s, 0)
    assert area == pytest.approx(len(jobs) * average_jct_s(done))


def test_a_job_that_is_larger_than_the_cluster_is_rejected_and_the_rest_runs():
    done = simulated(cluster(2), Fifo(), [job("large", gpus=3), job("a")], {"large": 9, "a": 5})

    assert [(one.job.job_id, one.phase) for one in done.results] == [
        ("large", Phase.REJECTED), ("a", Phase.FINISHED)
    ]  # fmt: skip


class Preempts(Fifo):
    """Policy that preempts all running jobs at 10 s."""

    def decide(self, state, forecasts, rng):
        if state.now_s == 10.0:
            return [Preempt(job_id) for job_id in state.running] + [Wake(20.0)]
        if state.now_s < 20.0 and state.progress("a"):
            return []
        return [Wake(10.0), *super().decide(state, forecasts, rng)]


def test_a_preempted_job_resumes_with_its_progress_after_its_costs():
    costs = Checkpointing(cost_s=3.0, restart_s=4.0)
    done = simulated(cluster(1), Preempts(), [job("a", checkpointing=costs)], {"a": 50.0})

    assert done.results[0].end_s == 20.0 + 7.0 + 40.0
    assert done.results[0].status.starts == 2


class Swaps(Fifo):
    """Lets two jobs change places at 10 s, in one batch."""

    def decide(self, state, forecasts, rng):
        if state.now_s != 10.0:
            return [Wake(10.0), *super().decide(state, forecasts, rng)]
        (a, on_a), (b, on_b) = state.running.items()
        return [Preempt(a), Preempt(b), Start(a, on_b.allocations), Start(b, on_a.allocations)]


def test_jobs_that_swap_devices_in_one_batch_pay_once():
    costs = Checkpointing(cost_s=1.0, restart_s=2.0)
    jobs = [job(name, checkpointing=costs) for name in "ab"]
    done = simulated(cluster(1, 1), Swaps(), jobs, {"a": 20.0, "b": 30.0})

    assert [(one.job.job_id, one.end_s) for one in done.results] == [("a", 23.0), ("b", 33.0)]
    assert done.results[0].status.starts == 2


def test_a_job_whose_node_fails_resumes_from_its_last_checkpoint_elsewhere():
    saves = Checkpointing(interval_s=20.0, cost_s=2.0)  # so 50 s of work take 55 s
    fault = [Fault(33.0, 0, repaired=False), Fault(500.0, 0, repaired=True)]
    done = simulated(
        cluster(1, 1), Fifo(), [job("a", checkpointing=saves)], {"a": 50.0}, faults=fault
    )

    # Its only checkpoint was made after 20 s of work.
    assert done.results[0].end_s == pytest.approx(33.0 + 30.0 * 1.1)
    assert [entry[1] for entry in done.log.entries] == [
        "submit", "decide", "start", "fail", "lost", "decide", "start", "finish"
    ]  # fmt: skip


def test_the_policy_does_not_decide_without_events():
    """A postponed end is not an event."""

    class Stops(Fifo):
        def decide(self, state, forecasts, rng):
            decided_at.append(state.now_s)
            at = {1.0: Pause("a"), 5.0: Resume("a")}.get(state.now_s)
            begun = [Wake(1.0), Wake(5.0)] if state.now_s == 0.0 else []
            return [*super().decide(state, forecasts, rng), *begun, *([at] if at else [])]

    decided_at: list[float] = []
    done = simulated(cluster(1), Stops(), [job("a")], {"a": 10.0})

    assert done.results[0].end_s == 14.0
    assert decided_at == [0.0, 1.0, 5.0, 14.0]  # and not at 10 s


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=20)
@given(trace=traces(), interval_s=st.sampled_from((0.1, 0.5, 3.0)))
def test_a_policy_decides_at_scheduling_passes_and_events_take_effect_at_once(
    name, trace, interval_s
):
    jobs, ground_truth = trace
    done = simulated(cluster(2, 2), policy_of(name), jobs, ground_truth, pass_interval_s=interval_s)

    decided = {at_s for at_s, kind, *_ in done.log.entries if kind == "decide"}
    assert all(at_s == round(at_s / interval_s) * interval_s for at_s in decided)
    submitted = {one: at_s for at_s, kind, one, _ in done.log.entries if kind == "submit"}
    assert submitted == {one.job_id: one.submit_s for one in jobs}
    assert {one.job.job_id for one in done.results} == ground_truth.keys()
    for one in done.results:
        assert one.phase is Phase.FINISHED
        if one.status.starts == 1 and name not in ("pollux", "elastic"):
            assert one.first_start_s is not None
            taken_s = one.end_s - one.first_start_s
            assert taken_s >= ground_truth[one.job.job_id] - 1e-9


def test_a_job_waits_for_the_next_pass_and_ends_between_two():
    jobs = [job("a", 0.5), job("b", 0.7)]
    done = simulated(cluster(1), Fifo(), jobs, {"a": 2.25, "b": 1.0}, pass_interval_s=1.0)

    times = {one.job.job_id: (one.first_start_s, one.end_s) for one in done.results}
    assert times == {"a": (1.0, 3.25), "b": (4.0, 5.0)}


class Sizes(TraceDurations):
    """Jobs of a size each; two on a device take turns."""

    def __init__(self, duration_s, gib):
        super().__init__(duration_s)
        self.gib = gib

    def memory_bytes(self, job, kind):
        return self.gib[job.job_id] * GIB

    def fits(self, kind, memory_bytes, members):
        return sum(self.memory_bytes(one, kind) for one in members) <= memory_bytes

    def slowdowns(self, kind, members):
        return (float(len(members)),) * len(members)


class Packs(Fifo):
    """Policy with two jobs a device, and one after an overflow."""

    def decide(self, state, forecasts, rng):
        capacity, actions = state.capacity(), []
        for waiting in state.pending:
            share = (
                FULL_DEVICE_MILLI
                if state.status(waiting.job_id).overflows
                else FULL_DEVICE_MILLI // 2
            )
            for device in range(state.cluster.devices):
                if capacity.compute_milli[device] >= share:
                    allocations = (Allocation(device, share, GIB),)
                    capacity.take(allocations)
                    actions.append(Start(waiting.job_id, allocations))
                    break
        return actions


def test_co_located_jobs_slow_each_other_down_while_both_run():
    ground_truth = Sizes({"a": 10.0, "b": 30.0}, {"a": 4, "b": 4})
    done = simulated(cluster(1), Packs(), [job("a"), job("b")], ground_truth)

    assert [(one.job.job_id, one.end_s) for one in done.results] == [("a", 20.0), ("b", 40.0)]


def test_a_job_that_does_not_fit_with_another_overflows_and_is_retried():
    ground_truth = Sizes({"a": 100.0, "b": 50.0}, {"a": 10, "b": 10})
    done = simulated(cluster(1), Packs(), [job("a"), job("b")], ground_truth)

    # Both take turns for 30 s, then b is out of memory; it runs once a is done.
    assert [(one.job.job_id, one.end_s) for one in done.results] == [("a", 115.0), ("b", 165.0)]
    assert [entry[1] for entry in done.log.entries if entry[2] == "b"] == [
        "submit", "start", "overflow", "start", "finish"
    ]  # fmt: skip
    assert done.results[1].status.overflows == 1


def test_a_job_that_fits_nowhere_fails_after_a_solo_run_on_each_kind():
    devices = Cluster((Node("n0", 2, "v100", 16 * GIB), Node("n1", 1, "k80", 12 * GIB)))
    done = simulated(devices, Fifo(), [job("a")], Sizes({"a": 100.0}, {"a": 20}))

    assert [(one.phase, one.end_s) for one in done.results] == [(Phase.FAILED, 2 * OVERFLOW_S)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_does_not_fit_is_retried_on_larger_devices(policy):
    devices = Cluster((Node("n0", 1, "v100", 16 * GIB), Node("n1", 2, "a100", 40 * GIB)))
    done = simulated(devices, POLICIES[policy](), [job("a")], Sizes({"a": 100.0}, {"a": 20}))

    starts = [more[0].device for _, what, _, more in done.log.entries if what == "start"]
    if policy == "random":
        assert starts[-1] in {1, 2}
        return
    assert starts == ([1] if policy == "sharing" else [0, 1])  # sharing checks the bound beforehand
    assert done.results[0].phase is Phase.FINISHED


class NeverStarts(Fifo):
    def decide(self, state, forecasts, rng):
        return [Wake(state.now_s + 1.0)]


def test_a_policy_that_starts_no_jobs_terminates():
    done = simulated(cluster(1), NeverStarts(), [job("a")], {"a": 1.0})

    assert done.results == []
    assert [waiting.job_id for waiting in done.ledger.pending] == ["a"]


class TakesTooMuch(Fifo):
    def decide(self, state, forecasts, rng):
        actions = super().decide(state, forecasts, rng)
        return actions if state.now_s else [*actions, Start("b", state.cluster.full_allocations)]


def test_an_impossible_action_is_logged_and_ignored_with_keep_going():
    jobs = [job("a"), job("b"), job("c", 5.0)]
    done = simulated(
        cluster(1), TakesTooMuch(), jobs, dict.fromkeys("abc", 1.0), stop_on_impossible=False
    )
    refused = [entry for entry in done.log.entries if entry[1] == "refused"]

    assert len(refused) == 1
    assert "Start of job 'b': n0/0 has 0 thousandths" in refused[0][3]["reason"]
    assert [one.job.job_id for one in done.results] == ["a", "b", "c"]


class Changes(Fifo):
    """Starts a job on one device, and changes what it has at given times."""

    def __init__(self, changes):
        self.changes = changes

    def decide(self, state, forecasts, rng):
        due = [
            Resize("a", allocations)
            for at_s, allocations in self.changes.items()
            if at_s == state.now_s
        ]
        wakes = [Wake(at_s) for at_s in self.changes if at_s > state.now_s]
        if state.now_s == 0.0:
            return [Start("a", (Allocation(0, 500, GIB),)), *wakes]
        return due if "a" in state.running else []


def test_an_elastic_job_pays_for_other_devices_and_not_for_other_shares():
    costs = Checkpointing(cost_s=9.0, restart_s=9.0)  # no part of a resize
    changes = {
        10.0: (Allocation(0, 900, GIB),),
        20.0: (Allocation(0, 900, GIB), Allocation(1, 900, GIB)),
    }
    one = job("a", gpus=2, min_gpus=1, checkpointing=costs)
    done = simulated(
        cluster(2), Changes(changes), [one], {"a": 50.0}, resize_costs=ResizeCosts(planned_s=3.0)
    )

    # On one device it would take 100 s; after 20 s it stops for 3 s, and goes on twice as fast.
    assert done.results[0].end_s == pytest.approx(20.0 + 3.0 + 80.0 / 2)
    assert done.results[0].status.starts == 1


def test_new_workers_need_a_time_before_an_elastic_job_starts_and_is_larger():
    changes = {20.0: (Allocation(0, 1000, GIB), Allocation(1, 1000, GIB))}
    one, costs = job("a", gpus=2, min_gpus=1), ResizeCosts(planned_s=3.0, startup_s=8.0)
    done = simulated(cluster(2), Changes(changes), [one], {"a": 50.0}, resize_costs=costs)

    # 12 s of 100 s are done after 20 s, then 8 s at the former speed, as much as 4 s at the new.
    assert done.results[0].end_s == pytest.approx(20.0 + 3.0 + 8.0 + (88.0 - 8.0) / 2)


def test_a_policy_gets_the_speed_of_a_size_once_it_was_measured():
    known = {}

    class Observer(Changes):
        def decide(self, state, forecasts, rng):
            known[state.now_s] = sorted(state.paces_s("a"))
            return super().decide(state, forecasts, rng)

    changes = {20.0: (Allocation(0, 1000, GIB), Allocation(1, 1000, GIB))}
    one, costs = job("a", gpus=2, min_gpus=1), ResizeCosts(startup_s=8.0, measuring_s=5.0)
    simulated(cluster(2), Observer(changes), [one], {"a": 50.0}, resize_costs=costs)

    # Workers train from 8 s on, and from 28 s on those of the second size.
    assert known[13.0] == [(1, 1)]
    assert known[20.0] == [(1, 1)]
    assert known[33.0] == [(1, 1), (2, 1)]
    assert min(known) == 0.0
    assert known[0.0] == []


@pytest.mark.parametrize(
    ("least", "end_s"),
    # On one device 50 s of work are left after 25 s, and half a second is lost; a job that needs
    # both devices restarts from its checkpoint after 20 s of work, once the node is repaired.
    [(1, 25.0 + 0.5 + 50.0), (0, 30.0 + 30.0)],
)
def test_an_elastic_job_loses_no_work_when_one_of_its_nodes_fails(least, end_s):
    one = job("a", gpus=2, min_gpus=least, checkpointing=Checkpointing(interval_s=20.0))
    done = simulated(cluster(1, 1), Fifo(), [one], {"a": 50.0}, faults=down(25.0, 30.0))

    assert done.results[0].end_s == pytest.approx(end_s)
    events = [event for _, event, job_id, _ in done.log.entries if job_id == "a"]
    lost = ["shrink"] if least else ["lost", "start"]
    assert events == ["submit", "start", *lost, "finish"]
    timeline = make_timeline(done.log.entries, cluster(1, 1), {"a"})
    assert timeline.busy_devices().integral(100.0) == pytest.approx(
        2 * 25.0 + (end_s - 25.0 if least else 2 * 30.0)
    )


class Scripted(Fifo):
    """Does given actions at given times, and starts jobs by arrival otherwise."""

    def __init__(self, script, *, starts=True):
        self.script, self.starts = script, starts

    def decide(self, state, forecasts, rng):
        wakes = [Wake(at_s) for at_s in self.script if at_s > state.now_s]
        if state.now_s in self.script:
            return [*self.script[state.now_s], *wakes]
        return [*(super().decide(state, forecasts, rng) if self.starts else ()), *wakes]


def down(at_s, until_s=None, node=0):
    repaired = [] if until_s is None else [Fault(until_s, node, repaired=True)]
    return [Fault(at_s, node, repaired=False), *repaired]


def test_the_checkpoint_of_a_preempted_job_survives_the_next_failure():
    # Saved after 900 s; started again at 900, and its node fails 50 s later.
    done = simulated(
        cluster(1), Scripted({900.0: [Preempt("a"), Start("a", cluster(1).full_allocations)]}),
        [job("a")], {"a": 1000.0}, faults=down(950.0, 950.0),
    )  # fmt: skip
    assert done.results[0].end_s == 950.0 + 100.0

    script = {900.0: [Preempt("a"), Wake(905.0)], 905.0: [Start("a", cluster(1).full_allocations)]}
    done = simulated(
        cluster(1), Scripted(script), [job("a")], {"a": 1000.0}, faults=down(950.0, 950.0)
    )
    assert done.results[0].end_s == 950.0 + 100.0


def test_a_checkpoint_holds_what_was_done_when_it_was_written():
    # Half as fast until 1000 s, where a checkpoint is due; then solo until the node fails.
    class Both(Fifo):
        def decide(self, state, forecasts, rng):
            return [
                Start(one.job_id, (Allocation(0, 500, 8 * GIB),))
                for one in state.pending
                if one.job_id not in state.jobs_on(0) and len(state.jobs_on(0)) < 2
            ]

    saves = Checkpointing(interval_s=1000.0)
    jobs = [job("a", checkpointing=saves), job("b")]
    ground_truth = Sizes({"a": 2000.0, "b": 500.0}, {"a": 1, "b": 1})
    done = simulated(cluster(1), Both(), jobs, ground_truth, faults=down(1900.0, 1900.0))

    # After 1000 s: 500 s of its work are saved. 900 s more are lost.
    ends = {one.job.job_id: one.end_s for one in done.results}
    assert ends["a"] == pytest.approx(1900.0 + 1500.0)


def test_a_paused_job_whose_node_fails_falls_back_to_its_checkpoint():
    saves = Checkpointing(interval_s=30.0)
    done = simulated(
        cluster(1), Scripted({50.0: [Pause("a")]}), [job("a", checkpointing=saves)], {"a": 100.0},
        faults=down(60.0, 70.0),
    )  # fmt: skip
    assert done.results[0].end_s == pytest.approx(70.0 + 70.0)


@pytest.mark.parametrize(
    "more",
    [
        {101.0: [Pause("a")], 102.0: [Resume("a")]},
        {101.0: [Resize("a", (Allocation(0, 900, 16 * GIB),))]},
    ],
)
def test_a_restart_is_paid_in_full_despite_interruptions(more):
    costs = Checkpointing(restart_s=600.0)
    script = {10.0: [Preempt("a"), Wake(100.0)], 100.0: [Start("a", cluster(1).full_allocations)]}
    done = simulated(
        cluster(1), Scripted(script | more, starts=True), [job("a", checkpointing=costs)],
        {"a": 110.0},
    )  # fmt: skip
    paused_s = 1.0 if 102.0 in more else 0.0
    assert done.results[0].end_s == pytest.approx(100.0 + 600.0 + 100.0 + paused_s)


@pytest.mark.parametrize("faults", [[], down(1e9)])
@pytest.mark.parametrize(
    "wants",
    [
        lambda state: [Wake(state.now_s + 1e-3)],
        lambda state: [Reserve("a", state.cluster.full_allocations, state.now_s + 1.0)],
        lambda state: [
            Start("a", state.cluster.full_allocations),
            Preempt("a"),
            Wake(state.now_s + 1.0),
        ],
    ],
)
def test_a_policy_that_wakes_for_ever_without_starts_is_stopped(wants, faults):
    class Restless(Fifo):
        def decide(self, state, forecasts, rng):
            return wants(state) if len(state.pending) or state.now_s else []

    done = simulated(
        cluster(1), Restless(), [job("a")], {"a": 1.0}, faults=faults, stop_on_impossible=False
    )
    assert done.results == []
    assert len(done.ledger.jobs) == 1
