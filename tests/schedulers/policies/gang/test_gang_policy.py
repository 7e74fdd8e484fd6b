"""Gang scheduling in the simulator: requirements A1 to A5 and B1 to B5."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.core.action import Start
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.faults.fault import Fault
from presage.schedulers.policies.gang.candidates import candidates_of, needs_of
from presage.schedulers.policies.gang.gang_policy import Gang
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.policies.policy_registry import policy_of
from presage.testing.random_cases import traces
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.schedulers.policies.test_sharing import of, packed, starts_of
from tests.support.slow_tests import examples


def first_starts_s(done):
    return {job_id: at_s for job_id, (at_s, _) in starts_of(done).items()}


def entries(done, *what):
    return [(at_s, kind, job_id) for at_s, kind, job_id, _ in done.log.entries if kind in what]


def test_a1_a_gang_is_started_in_one_action():
    done = simulated(cluster(2, 2), Gang(), [job("a", gpus=3)], {"a": 10.0})
    (start,) = [entry for entry in done.log.entries if entry[1] == "start"]
    assert len(start[3]) == 3


def test_a2_gangs_are_ordered_by_priority_then_waiting_time_then_name():
    jobs = [
        job("first"),
        job("c", 1.0),
        job("b", 1.0),
        job("late", 2.0),
        job("high", 3.0, priority=1),
    ]
    done = simulated(cluster(1), Gang(), jobs, {one.job_id: 10.0 for one in jobs})
    assert list(first_starts_s(done)) == ["first", "high", "b", "c", "late"]


def test_a3_a_single_task_is_a_gang_of_one():
    done = simulated(
        cluster(2), Gang(), [job("a"), job("b"), job("c")], {"a": 5.0, "b": 5.0, "c": 1.0}
    )
    assert first_starts_s(done) == {"a": 0.0, "b": 0.0, "c": 5.0}


def test_a4_a_member_is_placed_where_it_fits_with_the_least_degradation():
    jobs = [of("small", "0"), of("large", "1"), of("small", "2", 1.0)]
    assert starts_of(packed(jobs, nodes=(1, 1, 1), policy=Gang()))["2"] == (1.0, [2])
    # With the other small job both lose 1 - 1 / 1.1; with the large one they lose more.
    assert starts_of(packed(jobs, nodes=(1, 1), policy=Gang()))["2"] == (1.0, [0])


def waiting_for_two(expiry_s, first_s, second_s, **more):
    """Return a state in which a gang of two waits for devices that are freed one by one."""
    jobs = [job("0"), job("1"), job("gang", 1.0, gpus=2), job("next", 2.0)]
    lengths = {"0": first_s, "1": second_s, "gang": 10.0, "next": 10.0}
    return simulated(cluster(2), Gang(expiry_s=expiry_s, **more), jobs, lengths)


def test_a5_a_gang_holds_its_devices_until_its_quorum_is_there():
    done = waiting_for_two(50.0, 20.0, 60.0)
    assert entries(done, "reserve", "expire") == [(20.0, "reserve", "gang")]
    assert first_starts_s(done)["gang"] == 60.0
    assert first_starts_s(done)["next"] == 70.0


def test_a5_an_expired_reservation_is_released_and_the_gang_queues_again():
    done = waiting_for_two(30.0, 20.0, 1000.0, backoff_s=5.0)
    assert entries(done, "reserve", "expire")[:3] == [
        (20.0, "reserve", "gang"), (50.0, "expire", "gang"), (60.0, "reserve", "gang"),
    ]  # fmt: skip
    assert first_starts_s(done)["next"] == 50.0  # it came before the gang failed
    # Each time the reservation is twice as long, until the quorum is there.
    expiries = [at_s for at_s, what, _ in entries(done, "expire")]
    kept = [at_s for at_s, what, _ in entries(done, "reserve")]
    lengths = [end - begin for begin, end in zip(kept, expiries, strict=False)]
    assert lengths == [30.0 * 2**i for i in range(len(lengths))]
    assert first_starts_s(done)["gang"] == 1000.0


def test_a5_a_quorum_is_enough_and_more_members_are_better():
    jobs = [job("0"), job("gang", 1.0, gpus=4, min_gpus=2)]
    done = simulated(cluster(4), Gang(), jobs, {"0": 100.0, "gang": 30.0})
    assert starts_of(done)["gang"] == (1.0, [1, 2, 3])


def test_a5_a_large_gang_is_not_skipped_for_ever():
    small = [job(f"s{i}", 7.0 * i) for i in range(400)]
    jobs = sorted([*small, job("gang", 50.0, gpus=4)], key=lambda one: one.submit_s)
    lengths = {one.job_id: 60.0 for one in jobs}
    done = simulated(cluster(4, 4), Gang(expiry_s=5.0, backoff_s=10.0), jobs, lengths)
    assert first_starts_s(done)["gang"] < 500.0
    for who_keeps_nothing in ("best-fit", "gang:expiry_s=0"):
        busy = simulated(cluster(4, 4), policy_of(who_keeps_nothing), jobs, lengths)
        assert first_starts_s(busy)["gang"] > 2000.0


def test_by_default_a_gang_that_fits_on_one_node_waits_for_one():
    # Of two nodes of two, the first has a device to spare from 10 s on, the second one has one.
    jobs = [job("0"), job("1"), job("2"), job("gang", 1.0, gpus=2), job("wide", 2.0, gpus=3)]
    lengths = {"0": 10.0, "1": 50.0, "2": 30.0, "gang": 40.0, "wide": 5.0}
    done = simulated(cluster(2, 2), Gang(), jobs, lengths)
    assert starts_of(done)["gang"] == (30.0, [2, 3])
    assert starts_of(done)["wide"][0] == 70.0  # no node can hold it
    anywhere = simulated(cluster(2, 2), Gang(near="cluster"), jobs, lengths)
    assert starts_of(anywhere)["gang"] == (10.0, [0, 3])
    with pytest.raises(ConfigError, match="near='room' is not a level; levels are nvlink, pix"):
        simulated(cluster(2), Gang(near="room"), [job("gang", gpus=2)], {"gang": 1.0})


def test_a_gang_reserves_nothing_on_a_node_that_is_too_small():
    jobs = [job("0", gpus=4), job("gang", 1.0, gpus=4), job("small", 2.0)]
    lengths = {"0": 100.0, "gang": 10.0, "small": 5.0}
    done = simulated(cluster(4, 2), Gang(), jobs, lengths)
    assert entries(done, "reserve") == []
    assert starts_of(done)["small"] == (2.0, [4])
    assert starts_of(done)["gang"] == (100.0, [0, 1, 2, 3])


class Pairs:
    """Forecaster in which two jobs fit on a device unless both are calm; slowdowns are by name."""

    def __init__(self):
        self.requests = []

    def predictions(self, requests):
        return [
            RuntimePrediction(100.0, 600 if one.model == "calm" else 300, GIB)
            for one, _ in requests
        ]

    def slowdowns(self, requests):
        self.requests.append([tuple(one.model for one in jobs) for _, jobs in requests])
        return [
            tuple(1.25 if one.model == "victim" else 1.0 for one in jobs) for _, jobs in requests
        ]


def test_b1_to_b4_candidate_and_co_located_jobs_are_predicted_in_one_request():
    pairs = Pairs()
    jobs = [of("victim", "0"), of("calm", "1"), of("calm", "2"), of("new", "gang", 1.0, gpus=2)]
    done = packed(jobs, nodes=(3,), policy=Gang(), forecaster=lambda world, devices: pairs)
    assert pairs.requests[-1] == [("victim", "new"), ("calm", "new")]  # in one batch, alike once
    assert starts_of(done)["gang"] == (1.0, [1, 2])  # SD is (0.2 + 0) / 2 with the victim


class ByName(Pairs):
    """Forecaster in which a job named "1.5" has that slowdown next to any job; all are small."""

    def predictions(self, requests):
        return [RuntimePrediction(100.0, 300, GIB) for _ in requests]

    def slowdowns(self, requests):
        return [tuple(float(one.model) for one in jobs) for _, jobs in requests]


def with_tenants(devices, waiting, **tenants):
    """Return a state with jobs of these models on these devices, and a waiting job."""
    ledger = Ledger(devices, Queue(lambda job, status: (job.submit_s,)))
    for job_id, (model, where) in tenants.items():
        ledger.submit(of(model, job_id, gpus=len(where)), 0.0)
        ledger.apply([Start(job_id, tuple(Allocation(at, 300, GIB) for at in where))], 0.0)
    ledger.submit(waiting, 1.0)
    return State(ledger, 1.0, Progress())


def test_b4_the_cost_of_a_member_is_the_mean_degradation_on_its_device():
    devices, new = cluster(4), of("1.6", "new", gpus=2)
    state = with_tenants(devices, new, a=("1.25", (0, 1)), b=("2", (1,)), c=("8", (2,)))
    limits, forecasts = Limits(4.0, 3, 1.0), Forecasts(ByName(), devices)
    needs = needs_of(new, devices, forecasts, limits, exclusive=False)
    found = candidates_of(new, needs, devices, Tenants(state), forecasts, limits)
    assert found.devices[:, 0].tolist() == [0, 1, 3]  # with c a job would be slowed too much
    assert found.degradation == pytest.approx([(0.2 + 0.375) / 2, (0.2 + 0.5 + 0.375) / 3, 0.0])
    assert found.with_capacity == 4


@pytest.mark.parametrize("near", ["node", "cluster"])
def test_a5_more_members_than_the_quorum_are_better_also_where_fewer_would_cost_less(near):
    gang = of("1", "gang", 1.0, gpus=4, min_gpus=2)
    state = with_tenants(cluster(4, 2), gang, a=("1.25", (0,)), b=("1.25", (1,)))
    (start,) = Gang(near=near).decide(state, Forecasts(ByName(), state.cluster), Random(0))
    assert isinstance(start, Start)
    assert [allocation.device for allocation in start.allocations] == [0, 1, 2, 3]


def test_b5_the_slowest_member_may_set_the_pace():
    # On the first node a device costs 0.25 and the other nothing, on the second each costs 0.15.
    gang = of("1", "gang", 1.0, gpus=2)
    slow = str(1 / 0.7)
    state = with_tenants(cluster(2, 2), gang, a=("2", (0,)), b=(slow, (2,)), c=(slow, (3,)))

    def goes_to(reduce):
        forecasts = Forecasts(ByName(), state.cluster)
        policy = Gang(reduce=reduce, most_slowdown=2.0)
        (start,) = policy.decide(state, forecasts, Random(0))
        assert isinstance(start, Start)
        return [allocation.device for allocation in start.allocations]

    assert goes_to("mean") == [0, 1]
    assert goes_to("max") == [2, 3]
    with pytest.raises(ConfigError, match="reduce"):
        policy_of("gang:reduce=least")


@pytest.mark.parametrize(
    "wrong",
    ["most_members=0", "most_slowdown=0.5", "overcommit=0", "alpha=-1", "alpha=0:beta=0",
     "expiry_s=-1", "backoff_s=-1", "optimiser=best"],
)  # fmt: skip
def test_an_invalid_parameter_is_named(wrong):
    with pytest.raises(ConfigError, match=f"gang: .*{wrong.split('=')[0]}"):
        policy_of(f"gang:{wrong}")


@settings(deadline=None, max_examples=examples(150))
@given(
    made=traces(),
    seed=st.integers(0, 99),
    down=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2)), max_size=6),
    expiry_s=st.sampled_from((0.5, 4.0, 600.0)),
)
def test_a_gang_runs_with_no_members_or_with_enough_under_any_failure(made, seed, down, expiry_s):
    jobs, lengths = made
    faults: list[Fault] = []
    is_down: set[int] = set()
    for at_s, node in sorted(down):
        faults.append(Fault(float(at_s), node, node in is_down))
        is_down ^= {node}
    faults += [Fault(100.0, node, True) for node in sorted(is_down)]
    done = simulated(
        cluster(2, 2, 1), Gang(expiry_s=expiry_s, backoff_s=1.0), jobs, lengths, seed=seed,
        faults=faults,
    )  # fmt: skip
    of_id = {one.job_id: one for one in jobs}
    until_s: dict[str, float] = {}
    for at_s, what, job_id, more in done.log.entries:
        if what == "start":
            assert of_id[job_id].fewest_gpus <= len(more) <= of_id[job_id].gpus
        if what == "reserve":
            assert len(more["allocations"]) < of_id[job_id].fewest_gpus
            assert more["until_s"] == until_s.setdefault(job_id, more["until_s"])  # not put off
            assert at_s < more["until_s"]
        elif what in ("start", "expire", "preempt"):
            assert at_s <= until_s.pop(job_id, at_s)
    assert all(one.phase in (Phase.FINISHED, Phase.REJECTED) for one in done.results)
    assert len(done.results) == len(jobs)


def test_the_devices_of_a_task_are_on_one_node_and_no_node_has_more_tasks_than_it_can_take():
    lengths = {"pairs": 10.0, "odd": 100.0, "limited": 10.0, "later": 10.0}
    of_pairs = job("pairs", 1.0, gpus=4, gpus_per_task=2)
    done = simulated(cluster(3, 3), Gang(), [job("odd", gpus=2), of_pairs], lengths)
    # The first node has one device left: no task of two, though four devices are idle.
    assert starts_of(done) == {"odd": (0.0, [0, 1]), "pairs": (100.0, [0, 1, 3, 4])}

    limited = job("limited", gpus=3, node_limits=(("n0", 1, 1), ("n2", 2, 2)))
    done = simulated(cluster(4, 4, 4), Gang(), [limited, job("later", 1.0, gpus=4)], lengths)
    assert starts_of(done) == {"limited": (0.0, [0, 8, 9]), "later": (1.0, [4, 5, 6, 7])}
    nowhere = job("limited", node_limits=())
    assert simulated(cluster(4), Gang(), [nowhere], lengths).results == []


@pytest.mark.parametrize("more_urgent", [{"priority": 1}, {"latency_sensitive": True}])
def test_more_urgent_jobs_do_not_wait_for_reserved_devices(more_urgent):
    jobs = [job("0"), job("1"), job("gang", 1.0, gpus=2), job("usual", 25.0)]
    lengths = {"0": 20.0, "1": 400.0, "gang": 10.0, "usual": 10.0, "urgent": 30.0}
    jobs.append(job("urgent", 26.0, **more_urgent))
    done = simulated(cluster(2), Gang(expiry_s=500.0), jobs, lengths)
    assert entries(done, "reserve", "preempt") == [
        (20.0, "reserve", "gang"), (26.0, "preempt", "gang"), (86.0, "reserve", "gang"),
    ]  # fmt: skip
    assert first_starts_s(done) == {"0": 0, "1": 0, "urgent": 26.0, "usual": 56.0, "gang": 400.0}
    # What would not help is not taken.
    jobs[-1] = job("urgent", 26.0, gpus=2, node_limits=(), **more_urgent)
    done = simulated(cluster(2), Gang(expiry_s=500.0), jobs, lengths)
    assert entries(done, "preempt") == []
