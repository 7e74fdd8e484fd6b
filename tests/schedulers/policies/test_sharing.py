"""Policies that let jobs share a device, and those that pass jobs over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.shared_devices import SharedDevices
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.queue import Queue
from presage.schedulers.faults.fault import Fault
from presage.schedulers.forecasters.oracle import Oracle
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.policies.bin_packing import BinPacking
from presage.schedulers.policies.packing.packing_policy import Packing
from presage.schedulers.simulator.ground_truth.measured_truth import MeasuredTruth
from presage.schedulers.simulator.ground_truth.measurements import Measurements
from tests.schedulers.clusters import GIB, cluster, job, simulated

KIND = "v100"
WORLD = Measurements(
    features={},
    step_s={("small", KIND): 0.1, ("large", KIND): 0.1, ("greedy", KIND): 0.1},
    busy={("small", KIND): 0.4, ("large", KIND): 0.5, ("greedy", KIND): 0.3},
    memory_bytes={("small", KIND): 4 * GIB, ("large", KIND): 10 * GIB, ("greedy", KIND): GIB},
    slowdowns={
        (KIND, ("large", "small")): (1.2, 1.4),
        (KIND, ("small", "small")): (1.1, 1.1),
        (KIND, ("greedy", "small")): (1.1, 1.9),
        (KIND, ("greedy", "greedy")): (1.9, 1.9),
    },
)


def of(model: str, job_id: str, submit_s: float = 0.0, **values):
    return job(job_id, submit_s, model=model, **values)


def packed(jobs, *, nodes=(1,), policy=None, seconds=None, forecaster=None, faults=()):
    lengths = {one.job_id: (seconds or {}).get(one.job_id, 100.0) for one in jobs}
    world, devices = MeasuredTruth(lengths, WORLD, KIND), cluster(*nodes)
    predictions = forecaster(world, devices) if forecaster else None
    return simulated(
        devices, policy or Packing(), jobs, world, forecaster=predictions, faults=faults
    )


def starts_of(done):
    """Return time and devices of each job's first start."""
    found: dict[str, tuple[float, list[int]]] = {}
    for now_s, what, job_id, allocations in done.log.entries:
        if what == "start":
            found.setdefault(job_id, (now_s, [allocation[0] for allocation in allocations]))
    return found


def test_a_job_gets_an_idle_device_if_there_is_one_else_it_is_co_located():
    jobs = [of("small", "0"), of("large", "1"), of("small", "2", 1.0)]
    done = packed(jobs, nodes=(2,))

    # With the other small job both slow down by 1.1, with the large one it would by 1.4.
    assert starts_of(done) == {"0": (0.0, [0]), "1": (0.0, [1]), "2": (1.0, [0])}
    ends = {one.job.job_id: one.end_s for one in done.results}
    assert ends["1"] == 100.0
    assert ends["0"] == pytest.approx(1.0 + 99.0 * 1.1)
    assert ends["2"] == pytest.approx(ends["0"] + (100.0 - 99.0))


def test_no_job_is_co_located_where_a_slowdown_exceeds_the_limit():
    jobs = [of("small", "0"), of("greedy", "1", 1.0)]
    assert starts_of(packed(jobs))["1"] == (100.0, [0])
    assert starts_of(packed(jobs, policy=Packing(most_slowdown=1.9)))["1"] == (1.0, [0])


def test_predicted_memory_and_compute_are_not_allocated_twice():
    # 10 + 10 of 16 GiB; and 0.4 + 0.4 + 0.4 of a device's compute.
    assert starts_of(packed([of("large", "0"), of("large", "1")]))["1"] == (100.0, [0])
    three = [of("small", str(i)) for i in range(3)]
    done = packed(three, policy=Packing(most_members=3))
    assert [now_s for now_s, _ in starts_of(done).values()] == [0.0, 0.0, pytest.approx(110.0)]


def test_compute_is_allocated_twice_with_overcommit():
    jobs = [of("small", str(i)) for i in range(3)]
    done = packed(jobs, policy=Packing(most_members=3, overcommit=1.25))
    assert {now_s for now_s, _ in starts_of(done).values()} == {0.0}


def test_a_gang_gets_exclusive_devices_and_is_not_overtaken():
    jobs = [of("small", "0"), of("small", "1", 0.5), of("small", "gang", 1.0, gpus=2),
            of("small", "2", 2.0), of("small", "3", 3.0)]  # fmt: skip
    done = packed(jobs, nodes=(2, 1), seconds={"0": 200.0, "gang": 50.0, "2": 60.0, "3": 60.0})

    # The first is on the small node, by best fit, and jobs may join it. The larger node is drained
    # for the gang, although it would give a device sooner: no job joins the second one there.
    assert starts_of(done) == {
        "0": (0.0, [2]), "1": (0.5, [0]), "2": (2.0, [2]), "gang": (100.5, [0, 1]),
        "3": (pytest.approx(68.0), [2]),
    }  # fmt: skip


def test_a_job_that_ran_out_of_memory_gets_an_exclusive_device():
    jobs = [of("large", "0"), of("large", "1", 1.0), of("small", "2", 2.0), of("small", "3", 3.0)]
    done = packed(jobs, forecaster=Careless)

    overflows = [entry[2] for entry in done.log.entries if entry[1] == "overflow"]
    assert overflows == ["1"]
    again = [e for e in done.log.entries if e[1] == "start" and e[2] == "1"][1]
    assert again[3] == (Allocation(0, 1000, 16 * GIB),)
    assert [one.phase for one in done.results] == [Phase.FINISHED] * 4


def test_a_job_without_a_forecast_gets_an_exclusive_device():
    done = packed([of("", "0"), of("small", "1"), of("", "2", 1.0)], forecaster=Unknown)
    assert [now_s for now_s, _ in starts_of(done).values()] == [0.0, 100.0, 200.0]


class Careless(Oracle):
    """Forecaster that predicts a quarter of the memory, and no slowdowns."""

    def predictions(self, requests):
        predictions = super().predictions(requests)
        return [one._replace(memory_bytes=one.memory_bytes // 4) for one in predictions]

    def slowdowns(self, requests):
        return [(1.0,) * len(jobs) for _, jobs in requests]


class Unknown(Oracle):
    """Knows only what has a model."""

    def predictions(self, requests):
        return [predictions if one.model else None for (one, _), predictions in
                zip(requests, super().predictions(requests), strict=True)]  # fmt: skip


class Counting(Oracle):
    """Counts the questions of each kind that it is asked at once."""

    def __init__(self, ground_truth, devices):
        super().__init__(ground_truth, devices)
        self.solo, self.together = [], []

    def predictions(self, requests):
        self.solo.append(len(requests))
        return super().predictions(requests)

    def slowdowns(self, requests):
        self.together.append(len(requests))
        return super().slowdowns(requests)


def test_a_decision_with_ten_thousand_jobs_requests_each_once():
    counting = []

    def forecaster(world, devices):
        counting.append(Counting(world, devices))
        return counting[0]

    models = ("small", "large", "greedy")
    jobs = [of(models[i % 3], str(i), float(i >= 8)) for i in range(10_008)]
    world = MeasuredTruth({one.job_id: 1e6 for one in jobs}, WORLD, KIND)
    devices = cluster(8)

    class StopError(Exception):
        """Raised at the second decision."""

    class Twice(Packing):
        decided = 0

        def decide(self, state, forecasts, rng):
            actions = super().decide(state, forecasts, rng)
            self.decided += 1
            if self.decided == 2:
                assert len(state.pending) == 10_000
                raise StopError
            return actions

    with pytest.raises(StopError):
        simulated(devices, Twice(), jobs, world, forecaster=forecaster(world, devices))
    assert counting[0].solo == [8, 10_000]
    assert len(counting[0].together) == 1
    assert counting[0].together[0] <= 9  # three models with three


def test_no_best_effort_job_takes_the_device_of_a_second_urgent_job():
    urgent = {"compute_milli": 300, "memory_bytes": GIB, "latency_sensitive": True}
    jobs = [of("small", "0"), of("small", "1"), of("greedy", "a", 1.0, **urgent),
            of("greedy", "b", 2.0, **urgent), of("small", "2", 3.0)]  # fmt: skip
    done = packed(jobs, nodes=(2,), seconds={"0": 10.0})

    # By requests it fits with the other job, where it would become too slow.
    assert not [entry for entry in done.log.entries if entry[1] == "refused"]
    assert starts_of(done)["a"] == (10.0, [0])
    assert starts_of(done)["2"][0] > starts_of(done)["b"][0]


def light(job_id, submit_s):
    """Return one of an endless stream of compatible jobs."""
    return of("small", job_id, submit_s)


def first_start_s(done, job_id):
    return starts_of(done)[job_id][0]


@pytest.mark.parametrize("options", [{"latency_sensitive": True}, {}])
def test_a_job_without_compatible_jobs_is_not_skipped_for_ever(options):
    jobs = [light(str(i), 40.0 * i) for i in range(30)]
    jobs.insert(1, of("greedy", "solo", 1.0, **options))
    done = packed(jobs, seconds={"solo": 10.0})
    assert first_start_s(done, "solo") == 100.0  # when the first one ends


@pytest.mark.parametrize(("nodes", "down"), [((2, 2, 4), ()), ((4, 4), (0,)), ((4, 4), ())])
def test_nodes_are_drained_for_a_gang(nodes, down):
    jobs = [light(str(i), 5.0 * i) for i in range(200)]
    jobs.insert(20, of("small", "gang", 96.0, gpus=4))
    done = packed(
        jobs, nodes=nodes, seconds={"gang": 10.0}, faults=[Fault(0.0, node, False) for node in down]
    )
    assert first_start_s(done, "gang") < 400.0  # those that were there have ended


def test_full_devices_and_other_kinds_hide_no_place(monkeypatch):
    monkeypatch.setattr("presage.schedulers.policies.packing.compatibility.BREADTH", 3)

    class Alike:
        def predictions(self, requests):
            return [
                RuntimePrediction(1e4, 500 if one.model[0] == "h" else 50, GIB)
                for one, _ in requests
            ]

        def slowdowns(self, requests):
            return [(1.1,) * len(jobs) for _, jobs in requests]

    # Pairs of light jobs leave most compute, and are full; a heavy one on the last device is not.
    first = [of(f"light {i}", f"l{i}") for i in range(8)] + [of("heavy", "h")]
    jobs = [
        *first,
        *(of(f"other {i}", f"o{i}", 1.0 + i / 8) for i in range(8)),
        of("new", "n", 2.0),
    ]
    lengths = {one.job_id: 1e4 for one in jobs}
    done = packed(jobs, nodes=(9,), seconds=lengths, forecaster=lambda world, devices: Alike())
    assert first_start_s(done, "n") == 2.0


def test_waiting_gangs_hide_no_place(monkeypatch):
    monkeypatch.setattr("presage.schedulers.policies.packing.packing_policy.DEPTH", 2)
    gangs = [of("small", f"g{i}", 1.0, gpus=2, priority=1, min_gpus=i % 2) for i in range(9)]
    gangs = [replace(one, kinds=(KIND,) * i) for i, one in enumerate(gangs)]  # shapes of their own
    jobs = [of("small", "0"), of("small", "1"), *gangs, of("small", "2", 2.0)]
    done = packed(jobs, nodes=(1, 1, 1), seconds={"0": 1e4, "1": 1e4})
    assert first_start_s(done, "2") < 1e4


def test_with_distinct_jobs_a_decision_considers_a_limited_number(monkeypatch):
    monkeypatch.setattr("presage.schedulers.policies.packing.packing_policy.DEPTH", 5)
    monkeypatch.setattr("presage.schedulers.policies.packing.compatibility.BREADTH", 3)
    predictions = []

    class Alike:
        def predictions(self, requests):
            return [RuntimePrediction(100.0, 400, GIB)] * len(requests)

        def slowdowns(self, requests):
            predictions.append([jobs[-1].job_id for _, jobs in requests])
            return [(1.1,) * len(jobs) for _, jobs in requests]

    jobs = [job(str(i), float(i >= 8), model=str(i)) for i in range(40)]
    lengths = {one.job_id: 100.0 for one in jobs}
    done = packed(jobs, nodes=(8,), seconds=lengths, forecaster=lambda world, devices: Alike())

    assert sorted(predictions[0]) == sorted(3 * [str(i) for i in range(8, 13)])
    assert all(len(requests) <= 5 * 8 for requests in predictions)
    assert [one.phase for one in done.results] == [Phase.FINISHED] * 40
    assert sum(now_s == 1.0 for now_s, _ in starts_of(done).values()) == 3  # on the same devices


def test_occupancies_that_no_device_has_are_forgotten(monkeypatch):
    monkeypatch.setattr("presage.schedulers.core.capacity.shared_devices.MAX_UNUSED", 4)
    shared = SharedDevices()
    shared.put(0, KIND, 500, GIB, [job("stays")])
    first = shared.occupancies
    for i in range(20):
        shared.put(1, KIND, 500, GIB, [job(str(i))])
        assert len(shared.occupancies) <= 4 + 2 * 2 + 1
        here = {one.jobs[0].job_id: bits for one, bits in shared.devices.items()}
        assert here == {"stays": 1, str(i): 2}
        assert all(shared.occupancies[one.number] is one for one in shared.devices)
        assert shared.present == sum(1 << one.number for one in shared.devices)
    assert shared.occupancies is not first


def test_best_fit_skips_jobs_that_do_not_fit():
    jobs = [job("0"), job("1", 1.0, gpus=2), job("2", 2.0)]
    done = simulated(cluster(2), BestFit(), jobs, {"0": 10.0, "1": 10.0, "2": 8.0})
    assert starts_of(done) == {"0": (0.0, [0]), "2": (2.0, [1]), "1": (10.0, [0, 1])}


def fraction(job_id, submit_s, milli, **values):
    return job(job_id, submit_s, compute_milli=milli, **values)


def test_bin_packing_allocates_requests_on_the_fullest_device():
    jobs = [fraction("0", 0.0, 600), fraction("1", 1.0, 300), fraction("2", 2.0, 500),
            fraction("3", 3.0, 100), job("4", 4.0), fraction("5", 5.0, 200)]  # fmt: skip
    done = simulated(cluster(2), BinPacking(), jobs, {str(i): 10.0 for i in range(6)})

    assert starts_of(done) == {
        "0": (0.0, [0]), "1": (1.0, [0]), "2": (2.0, [1]), "3": (3.0, [0]), "5": (5.0, [1]),
        "4": (13.0, [0]),
    }  # fmt: skip
    first = next(entry for entry in done.log.entries if entry[1] == "start")
    assert first[3] == (Allocation(0, 600, 16 * GIB * 600 // 1000),)  # as much of its memory


def test_bin_packing_respects_memory_and_kinds():
    devices = Cluster((Node("a", 1, "k80", 12 * GIB), Node("b", 1, "v100", 16 * GIB)))
    jobs = [fraction("0", 0.0, 100, memory_bytes=10 * GIB, kinds=("v100",)),
            fraction("1", 1.0, 100, memory_bytes=7 * GIB),
            fraction("2", 2.0, 100, memory_bytes=7 * GIB)]  # fmt: skip
    done = simulated(devices, BinPacking(), jobs, {str(i): 10.0 for i in range(3)})
    assert starts_of(done) == {"0": (0.0, [1]), "1": (1.0, [0]), "2": (10.0, [1])}


def test_a_fractional_gang_is_placed_on_one_node_if_possible():
    jobs = [fraction("0", 0.0, 500, gpus=3), fraction("1", 1.0, 500, gpus=2),
            fraction("2", 2.0, 500, gpus=5)]  # fmt: skip
    done = simulated(cluster(2, 3), BinPacking(), jobs, {str(i): 10.0 for i in range(3)})
    starts = starts_of(done)
    assert starts["0"] == (0.0, [2, 3, 4])
    assert starts["1"] == (1.0, [0, 1])
    assert starts["2"][0] == 2.0
    assert sorted(starts["2"][1]) == [0, 1, 2, 3, 4]


@st.composite
def waiting(draw):
    """Return jobs of a few workload keys, and the keys that do not fit."""
    shapes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=20))
    return [job(str(i), gpus=gpus) for i, gpus in enumerate(shapes)], draw(
        st.sets(st.integers(1, 4))
    )


@settings(deadline=None)
@given(made=waiting(), keys=st.randoms(use_true_random=False), removed=st.integers(0, 20))
def test_a_cursor_yields_the_queue_order_without_skipped_jobs(made, keys, removed):
    jobs, unfit = made
    rank = {one.job_id: keys.randrange(5) for one in jobs}
    queue = Queue(lambda one, status: (rank[one.job_id],))
    for i, one in enumerate(jobs):
        if i == len(jobs) // 2:
            list(queue.cursor())  # from now on they are kept by shape
        queue.add(one, JobStatus(Phase.PENDING, 0.0))
    for one in jobs[:removed]:
        queue.remove(one.job_id)

    in_order = list(queue)
    assert in_order == sorted(jobs[removed:], key=lambda one: rank[one.job_id])
    assert queue.first() == (in_order[0] if in_order else None)
    assert list(queue.jobs_up_to(2)) == [one for one in in_order if one.gpus <= 2]
    seen, cursor = [], queue.cursor()
    for one in cursor:
        seen.append(one)
        if one.gpus in unfit:
            cursor.skip()
    first_of = {gpus: next((o for o in in_order if o.gpus == gpus), None) for gpus in unfit}
    assert seen == [o for o in in_order if o.gpus not in unfit or o is first_of[o.gpus]]
    assert {s: queue.representative(s).workload_key for s in queue.workload_keys(4)} == {
        one.workload_key: one.workload_key for one in in_order if one.gpus == 1
    }
