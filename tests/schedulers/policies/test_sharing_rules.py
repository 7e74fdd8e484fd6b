"""Requirements C1 to C7 and N1 to N9 of GPU sharing, each by name; the worked examples are theirs.

What the live cluster's two sides say and do (C7, N8) is in
tests/schedulers/live/controller/test_core.py and tests/schedulers/live/agent/test_node_core.py.
"""

from __future__ import annotations

import math
from itertools import chain, combinations
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from presage.errors import ConfigError, ImpossibleActionError
from presage.schedulers.core.action import Pause, Preempt, Resize, Resume, Start, Wake
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.cluster import Cluster, DeviceColumns, Node
from presage.schedulers.core.forecasts import Forecasts, RuntimePrediction
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.compute_usage import Usage
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.live.protocol.wire import read_predictions, write_prediction
from presage.schedulers.policies.sharing.device_choice import choose_device
from presage.schedulers.policies.sharing.needs import Needs, needs_of
from presage.schedulers.policies.sharing.node_choice import choose_node
from presage.schedulers.policies.sharing.reclaim import Tenant, release
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from presage.schedulers.policies.sharing.slo import is_violated
from tests.schedulers.clusters import GIB, cluster, job, simulated

NOTHING = NoForecasts()


class Fixed:
    """Forecaster by model: compute, memory, run time and its upper bound."""

    def __init__(self, **by_model):
        self._by_model = by_model

    def predictions(self, requests):
        return [self._of(one, kind) for one, kind in requests]

    def slowdowns(self, requests):
        return [[1.0] * len(jobs) for _, jobs in requests]

    def _of(self, one, kind):
        predictions = self._by_model.get(one.model)
        return predictions(kind) if callable(predictions) else predictions


def prediction(compute_milli, runtime_s=100.0, gib=1, **more):
    return RuntimePrediction(runtime_s, compute_milli, gib * GIB, **more)


class World:
    """Ledger under the policy without a simulator; tests set time and progress."""

    def __init__(self, devices, forecaster, **settings):
        self.policy = Sharing(**{"check_s": 60.0, "reserve": 0.0, **settings})
        self.forecasts = Forecasts(forecaster, devices)
        self.ledger = Ledger(
            devices,
            Queue(lambda one, status: self.policy.key(one, status, self.forecasts)),
            ageing_s=self.policy.needs.ageing_s,
        )
        self.progress, self.usage = Progress(), Usage()

    def submit(self, *jobs):
        for one in jobs:
            self.ledger.submit(one, one.submit_s, self.forecasts.too_small(one))
        return self

    def decide(self, now_s):
        state = State(self.ledger, now_s, self.progress, self.usage)
        actions = self.policy.decide(state, self.forecasts, Random(0))
        self.ledger.apply(actions, now_s)
        return [action for action in actions if not isinstance(action, Wake)]

    def held(self, job_id):
        return {g.device: g.compute_milli for g in self.ledger.status(job_id).allocations}

    def phase(self, job_id):
        return self.ledger.status(job_id).phase


def resources(*left):
    """Return nodes of devices, each with its kind and its free capacity in hundredths."""
    kinds = tuple(dict.fromkeys(kind for node in left for kind, _ in node))
    flat = list(chain(*left))
    columns = DeviceColumns(
        np.repeat(np.arange(len(left)), [len(node) for node in left]),
        np.full(len(flat), GIB),
        np.array([kinds.index(kind) for kind, _ in flat]),
        kinds,
    )
    capacity = FreeCapacity(np.array([10 * share for _, share in flat]), np.full(len(flat), GIB))
    return columns, capacity


def chosen(columns, capacity, rng=None, **need):
    needs = Needs(tuple(10 * need[kind] for kind in columns.kinds), (1,) * len(need))
    fitting = np.flatnonzero(needs.fit(capacity, columns))
    node = choose_node(fitting, capacity, columns, rng)
    return None if node is None else "abc"[node]


# The controller -------------------------------------------------------------------------------


def test_c1_the_resource_set_is_the_free_capacity_of_each_device_by_kind():
    has = (Node("a", 2, "v100", 16 * GIB), Node("b", 1, "k80", 12 * GIB))
    world = World(Cluster(has), Fixed(some=prediction(300, gib=5)))
    world.submit(job("one", model="some")).decide(0.0)

    capacity, columns = world.ledger.capacity, world.ledger.cluster.columns
    assert capacity.compute_milli.tolist() == [700, 1000, 1000]
    assert capacity.memory_bytes.tolist() == [11 * GIB, 16 * GIB, 12 * GIB]
    assert [columns.kinds[kind] for kind in columns.kind] == ["v100", "v100", "k80"]


def test_c2_a_node_is_feasible_if_a_device_has_the_predicted_need_for_its_kind():
    columns, capacity = resources([("A1", 45)], [("A2", 45)])

    assert chosen(columns, capacity, A1=50, A2=40) == "b"
    assert chosen(columns, capacity, A1=50, A2=50) is None


def test_c2_compute_and_memory_must_both_fit_and_on_the_same_device():
    world = World(cluster(2), Fixed(busy=prediction(900, gib=1), large=prediction(100, gib=12)))
    world.submit(job("1", model="busy"), job("2", model="large")).decide(0.0)
    assert world.held("1").keys() != world.held("2").keys()

    world.submit(job("3", model="large"), job("4", model="busy")).decide(1.0)
    assert world.held("3").keys() == world.held("1").keys()
    assert world.held("4").keys() == world.held("2").keys()

    world.submit(job("5", model="large")).decide(2.0)
    assert world.phase("5") is Phase.PENDING


LARGE_AND_SMALL = Cluster(
    (Node("small", 2, "v100", 16 * GIB), Node("large", 2, "h100", 80 * GIB)),
)


@pytest.mark.parametrize("gpus", [1, 2])
def test_c2_kinds_with_less_memory_than_predicted_are_excluded(gpus):
    world = World(LARGE_AND_SMALL, Fixed(some=prediction(200), huge=prediction(200, gib=40)))
    world.submit(job("on the large one", model="some", kinds=("h100",)))
    world.submit(job("huge", 1.0, model="huge", gpus=gpus)).decide(1.0)

    # All of the small one is left, and of its memory as much as there is: that is not enough.
    assert world.phase("huge") is (Phase.RUNNING if gpus == 1 else Phase.PENDING)
    assert world.held("huge").keys() <= {2, 3}


def test_c2_a_job_waiting_for_a_large_kind_does_not_block_a_small_one():
    world = World(LARGE_AND_SMALL, Fixed(large=prediction(1000), huge=prediction(200, gib=40)))
    for name in "12":
        world.submit(job(name, model="large", kinds=("h100",), latency_sensitive=True))
    world.decide(0.0)
    world.submit(job("huge", 1.0, model="huge", latency_sensitive=True), job("unknown", 1.0))
    world.decide(1.0)

    assert world.phase("huge") is Phase.PENDING
    assert world.held("unknown") == {0: FULL_DEVICE_MILLI}


def test_c2_a_kind_without_a_forecast_does_not_exclude_another():
    predictions = {"v100": None, "h100": prediction(200, gib=100)}
    world = World(LARGE_AND_SMALL, Fixed(huge=predictions.get))
    assert world.forecasts.too_small(job("huge", model="huge")) == ()


def test_c2_a_gang_is_placed_on_a_small_kind_if_only_that_has_enough_devices():
    devices = Cluster((Node("small", 4, "v100", 16 * GIB), Node("large", 2, "h100", 80 * GIB)))
    world = World(devices, Fixed(huge=prediction(200, gib=40)))
    world.submit(job("huge", model="huge", gpus=4)).decide(0.0)
    assert world.phase("huge") is Phase.RUNNING


def test_c2_if_no_kind_has_the_predicted_memory_a_job_gets_an_exclusive_device():
    predictions = Fixed(huge=prediction(200, gib=100), for_h100=prediction(200, gib=40))
    world = World(LARGE_AND_SMALL, predictions)
    world.submit(job("huge", model="huge"), job("kept", model="for_h100", kinds=("v100",)))
    world.decide(0.0)

    assert world.phase("huge") is world.phase("kept") is Phase.RUNNING
    assert world.ledger.status("kept").allocations[0].memory_bytes == 16 * GIB


def test_c3_the_node_with_the_most_free_eligible_device_as_in_the_worked_example():
    columns, capacity = resources(
        [("A1", 90), ("A1", 100), ("A1", 30)],
        [("A1", 90), ("A2", 40), ("A3", 80)],
        [("A1", 10), ("A2", 20), ("A3", 50)],
    )

    assert chosen(columns, capacity, A1=40, A2=50, A3=70) == "a"


def test_c3_ties_go_to_the_first_node_as_in_the_worked_example():
    columns, capacity = resources([("A1", 80), ("A3", 80)], [("A2", 80)], [("A1", 80), ("A2", 10)])

    assert chosen(columns, capacity, A1=30, A2=50, A3=90) == "a"


def test_c3_ties_may_be_broken_by_a_seed():
    columns, capacity = resources([("A1", 80)], [("A1", 80)], [("A1", 70)])
    found = {chosen(columns, capacity, Random(seed), A1=30) for seed in range(20)}

    assert found == {"a", "b"}
    assert chosen(columns, capacity, Random(3), A1=30) == chosen(
        columns, capacity, Random(3), A1=30
    )


shares, kinds = st.integers(0, 100), st.sampled_from(("A1", "A2"))


@given(
    left=st.lists(
        st.lists(st.tuples(kinds, shares), min_size=1, max_size=4), min_size=1, max_size=3
    ),
    need=st.fixed_dictionaries({"A1": shares, "A2": shares}),
)
def test_c3_the_specification_holds_for_any_resource_set(left, need):
    columns, capacity = resources(*left)
    need = {kind: need[kind] for kind in columns.kinds}
    best = {
        name: max((share for kind, share in node if share >= need[kind]), default=-1)
        for name, node in zip("abc", left, strict=False)
    }

    most = max(best.values())
    expected = None if most < 0 else min(name for name in best if best[name] == most)
    assert chosen(columns, capacity, **need) == expected


def test_c4_best_effort_jobs_are_evicted_as_in_the_worked_example():
    # Need A1 35: c has 20 left and 40 held by best effort; a and b have as much, and none to take.
    predictions = Fixed(
        urgent=prediction(350), held=prediction(800), mixed=prediction(400), be=prediction(400)
    )
    world = World(cluster(1, 1, 1), predictions, least_milli=400)
    for name, model, device, urgent in (
        ("on a", "held", 0, True), ("on b", "held", 1, True),
        ("on c", "mixed", 2, True), ("be on c", "be", 2, False),
    ):  # fmt: skip
        one = job(name, model=model, latency_sensitive=urgent)
        world.ledger.submit(one, 0.0)
        share = 800 if model == "held" else 400
        world.ledger.apply([Start(name, (Allocation(device, share, GIB),))], 0.0)
    assert world.ledger.capacity.compute_milli.tolist() == [200, 200, 200]

    world.submit(job("urgent", 4.0, model="urgent", latency_sensitive=True))

    assert world.decide(4.0) == [Preempt("be on c"), Start("urgent", (Allocation(2, 350, GIB),))]


def test_c4_without_releasable_best_effort_a_latency_sensitive_task_waits():
    world = World(cluster(1), Fixed(urgent=prediction(600)))
    world.submit(job("1", model="urgent", latency_sensitive=True))
    world.submit(job("2", model="urgent", latency_sensitive=True))
    world.decide(0.0)

    assert world.phase("1") is Phase.RUNNING
    assert world.phase("2") is Phase.PENDING


def test_c4_jobs_are_shrunk_before_any_is_evicted():
    tenants = [Tenant("a", 400, GIB, 100, 50.0), Tenant("b", 300, GIB, 100, 1.0)]

    assert release(250, 0, tenants) == ((), (("a", 150),), 0.0)
    assert release(400, 0, tenants) == ((), (("a", 100), ("b", 200)), 0.0)
    assert release(600, 0, tenants) == (("b",), (("a", 100),), 1.0)


def test_c4_evictions_are_the_smallest_set_with_the_least_loss():
    tenants = [
        Tenant("large", 500, 5 * GIB, 500, 90.0), Tenant("small", 200, 2 * GIB, 200, 1.0),
        Tenant("other", 300, 3 * GIB, 300, 2.0), Tenant("young", 500, 5 * GIB, 500, 10.0),
    ]  # fmt: skip

    def victims(lack_milli, lack_bytes):
        found = release(lack_milli, lack_bytes, tenants)
        return found and found.evicted

    assert victims(500, 0) == ("young",)
    assert victims(100, 3 * GIB) == ("other",)
    assert victims(700, 0) == ("small", "young")
    assert release(2000, 0, tenants) is None
    assert release(0, 0, tenants) == ((), (), 0.0)


@given(
    lack_milli=st.integers(-50, 2500), lack_gib=st.integers(-1, 20),
    made=st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 8), st.integers(1, 1000),
                            st.integers(0, 3)), max_size=5),
)  # fmt: skip
def test_c4_the_released_capacity_is_enough_and_no_smaller_set_is(lack_milli, lack_gib, made):
    tenants = [
        Tenant(str(i), milli, gib * GIB, min(least, milli), float(lost))
        for i, (milli, gib, least, lost) in enumerate(made)
    ]
    found = release(lack_milli, lack_gib * GIB, tenants)

    def enough(ended):
        kept = [one for one in tenants if one.job_id not in ended]
        milli = sum(t.compute_milli for t in tenants) - sum(t.least_milli for t in kept)
        freed = sum(one.memory_bytes for one in tenants if one not in kept)
        return milli >= lack_milli and freed >= lack_gib * GIB

    sets = chain(*(combinations([t.job_id for t in tenants], n) for n in range(len(tenants) + 1)))
    will_do = [ended for ended in sets if enough(ended)]
    if found is None:
        assert not will_do
        return
    lost = {one.job_id: one.lost_s for one in tenants}
    best = min((len(ended), sum(lost[i] for i in ended)) for ended in will_do)
    assert (len(found.evicted), found.lost_s) == best
    has = {one.job_id: one for one in tenants}
    given_milli = sum(has[i].compute_milli for i in found.evicted)
    given_milli += sum(has[i].compute_milli - left for i, left in found.shrunk)
    assert given_milli >= lack_milli
    assert all(left >= has[i].least_milli for i, left in found.shrunk)
    assert not set(found.evicted) & {i for i, _ in found.shrunk}


def test_c4_a_nearly_smallest_set_of_many_tenants_is_found_quickly():
    tenants = [Tenant(f"{i:02}", 20, (1 + i % 3) * GIB, 20, float(i)) for i in range(48)]
    found = release(0, 60 * GIB, tenants)

    assert found is not None
    assert len(found.evicted) <= 22  # 16 of 3 GiB, and 6 of 2 GiB
    assert sum(one.memory_bytes for one in tenants if one.job_id in found.evicted) >= 60 * GIB
    assert release(0, 97 * GIB, tenants) is None


def test_c4_a_job_with_a_recent_checkpoint_loses_less_than_one_without():
    often = Checkpointing(interval_s=60.0)
    world = World(cluster(2), Fixed(any=prediction(1000, 9e9)), least_milli=1000)
    world.submit(job("keeps", model="any", checkpointing=often), job("loses", model="any"))
    world.decide(0.0)
    world.submit(job("urgent", 3600.5, model="any", latency_sensitive=True))
    actions = world.decide(3600.5)

    assert actions[0] == Preempt("keeps")
    assert world.phase("loses") is Phase.RUNNING


def test_c4_work_saved_at_an_eviction_is_not_lost_again():
    world = World(cluster(2), Fixed(any=prediction(1000, 9e9)), least_milli=1000)
    world.submit(job("was away", model="any")).decide(0.0)
    world.ledger.apply([Preempt("was away")], 3000.0)
    world.submit(job("young", 3000.0, model="any"))
    for name, device, at_s in (("young", 1, 3400.0), ("was away", 0, 3500.0)):
        world.ledger.apply([Start(name, (world.ledger.cluster.full_allocations[device],))], at_s)
    world.submit(job("urgent", 3600.0, model="any", latency_sensitive=True))

    assert world.decide(3600.0)[0] == Preempt("was away")


def test_c4_a_job_that_reports_a_recent_checkpoint_loses_little():
    world = World(cluster(2), Fixed(any=prediction(1000, 9e9)), least_milli=1000)
    world.submit(job("silent", model="any"), job("saves", model="any")).decide(0.0)
    for name, saved in {"silent": 0.0, "saves": 0.29}.items():
        world.progress.report(name, 0.3, 3600.0, 1e-4, saved)
    world.submit(job("urgent", 3600.0, model="any", latency_sensitive=True))

    assert world.decide(3600.0)[0] == Preempt("saves")


def test_c4_a_latency_sensitive_gang_gets_devices_of_best_effort_jobs():
    world = World(cluster(2, 2), Fixed(any=prediction(1000)))
    world.submit(*(job(f"be{i}", model="any") for i in range(4))).decide(0.0)
    world.submit(job("gang", 1.0, gpus=2, latency_sensitive=True)).decide(1.0)

    assert world.phase("gang") is Phase.RUNNING
    assert [world.phase(f"be{i}") for i in range(4)].count(Phase.PENDING) == 2


def test_c4_a_gang_does_not_get_a_device_allocated_by_the_same_decision():
    world = World(cluster(2), Fixed(small=prediction(300), large=prediction(700)), least_milli=1000)
    world.submit(job("a", model="small"), job("b", model="small")).decide(0.0)
    world.submit(job("urgent", 1.0, model="large", latency_sensitive=True, priority=1))
    world.submit(job("gang", 1.0, gpus=2, latency_sensitive=True)).decide(1.0)

    assert world.phase("urgent") is Phase.RUNNING
    assert world.phase("gang") is Phase.PENDING


def test_c5_a_best_effort_task_that_fits_nowhere_waits_without_evictions():
    world = World(cluster(1), Fixed(some=prediction(600)))
    world.submit(job("1", model="some"), job("2", model="some")).decide(0.0)

    assert world.phase("2") is Phase.PENDING
    assert world.held("1") == {0: 600}


def test_c6_the_latency_sensitive_queue_is_served_before_the_best_effort_queue():
    world = World(cluster(1), Fixed(some=prediction(1000)))
    world.submit(job("now", model="some", latency_sensitive=True)).decide(0.0)
    world.submit(job("be", 1.0, model="some"), job("ls", 2.0, model="some", latency_sensitive=True))
    world.decide(2.0)
    world.ledger.end("now", Phase.FINISHED, 3.0)
    world.decide(3.0)

    assert world.phase("ls") is Phase.RUNNING
    assert world.phase("be") is Phase.PENDING


def test_c6_an_aged_task_gets_the_next_free_device():
    world = World(cluster(2), Fixed(large=prediction(900), small=prediction(400)), ageing_s=100.0)
    world.submit(job("1", model="large", latency_sensitive=True)).decide(0.0)
    world.submit(job("2", model="small", latency_sensitive=True)).decide(0.0)
    world.submit(job("aged", 1.0, model="large")).decide(1.0)
    world.submit(job("late", 150.0, model="small", latency_sensitive=True)).decide(150.0)

    assert world.phase("late") is Phase.PENDING


def test_c6_an_aged_task_is_drained_for_where_memory_is_freed_too():
    predictions = Fixed(
        tiny=prediction(100, gib=10), busy=prediction(600), small=prediction(300),
        aged=prediction(500, gib=12),
    )  # fmt: skip
    world = World(cluster(2), predictions, ageing_s=100.0)
    for number, model in enumerate(("tiny", "busy")):
        world.submit(job(model, model=model, latency_sensitive=True))
        of = predictions.predictions([(job(model, model=model), "v100")])[0]
        allocation = Allocation(number, of.compute_milli, of.memory_bytes)
        world.ledger.apply([Start(model, (allocation,))], 0.0)
    world.submit(job("aged", 1.0, model="aged")).decide(1.0)
    world.submit(job("ls", 150.0, model="small", latency_sensitive=True)).decide(150.0)

    # Device 0 has most compute left, but not the memory; device 1 lacks a tenth, and is kept.
    assert world.held("ls") == {0: 300}


def test_c6_with_ageing_a_best_effort_task_that_waited_long_precedes():
    world = World(cluster(1), Fixed(some=prediction(1000)), ageing_s=100.0)
    world.submit(job("now", model="some", latency_sensitive=True)).decide(0.0)
    world.submit(job("be", 1.0, model="some"))
    world.submit(job("ls", 2.0, model="some", latency_sensitive=True)).decide(2.0)
    world.ledger.end("now", Phase.FINISHED, 101.0)
    world.decide(101.0)

    assert world.phase("be") is Phase.RUNNING
    with pytest.raises(ImpossibleActionError, match="latency-sensitive job 'ls'"):
        plain = World(cluster(1), Fixed(some=prediction(1000)))
        plain.submit(job("be"), job("ls", latency_sensitive=True))
        plain.ledger.apply([Start("be", plain.ledger.cluster.full_allocations)], 200.0)


def test_c7_a_task_carries_its_need_and_its_predicted_run_time_on_every_kind():
    """Messages are tested in tests/schedulers/live/controller; this tests their content."""
    has = Cluster((Node("a", 1, "v100", 16 * GIB), Node("b", 1, "k80", 12 * GIB)))
    by_kind = {"v100": prediction(300, 50.0, 2), "k80": prediction(800, 190.0, 3)}
    forecasts = Forecasts(Fixed(some=by_kind.get), has)
    kinds = ("v100", "k80")
    predictions = read_predictions(
        [write_prediction(k, forecasts.prediction(job("1", model="some"), k)) for k in kinds]
    )

    assert needs_of(job("1", model="some"), kinds, forecasts, 1.0) == (
        (300, 800), (2 * GIB, 3 * GIB),
    )  # fmt: skip
    assert {kind: one.runtime_s for kind, one in predictions.items()} == {
        "v100": 50.0,
        "k80": 190.0,
    }


# The node agent -------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "device"), [((50, 10, 0, 0), 0), ((80, 40, 100, 10), 2)], ids=str)
def test_n1_a_latency_sensitive_task_gets_the_most_free_device_as_in_both_examples(left, device):
    predictions = {f"fill{share}": prediction(1000 - 10 * share) for share in left}
    world = World(cluster(4), Fixed(need=prediction(50), **predictions))
    for i, share in enumerate(left):
        if share < 100:
            one = job(f"fill{i}", model=f"fill{share}")
            world.ledger.submit(one, 0.0)
            world.ledger.apply([Start(one.job_id, (Allocation(i, 1000 - 10 * share, GIB),))], 0.0)
    world.submit(job("ls", 1.0, model="need", latency_sensitive=True))
    world.decide(1.0)

    assert world.held("ls") == {device: 50}


def test_n2_without_predicted_slowdowns_only_the_solo_run_time_counts():
    class SoloOnly(Fixed):
        def slowdowns(self, requests):
            return [None] * len(requests)

    def predictions(kind):
        return prediction(300, 100.0 if kind == "a100" else 1000.0)

    devices = Cluster((Node("a", 1, "a100", 40 * GIB), Node("k", 1, "k80", 12 * GIB)))
    world = World(devices, SoloOnly(there=prediction(500), be=predictions))
    world.submit(job("a", model="there", kinds=("a100",)), job("k", model="there", kinds=("k80",)))
    world.decide(0.0)
    state = State(world.ledger, 1.0, world.progress, world.usage)

    assert (
        choose_device(job("be", model="be"), [1, 0], state, state.capacity(), world.forecasts) == 0
    )


def test_n2_a_best_effort_task_gets_the_device_with_the_shortest_predicted_run_time():
    class Crowded(Fixed):
        def slowdowns(self, requests):
            return [[3.0 if jobs[0].model == "loud" else 1.1] * len(jobs) for _, jobs in requests]

    predictions = Crowded(loud=prediction(300), quiet=prediction(400), new=prediction(200))
    world = World(cluster(2), predictions)
    world.submit(job("loud", model="loud"), job("quiet", model="quiet")).decide(0.0)
    world.submit(job("new", 1.0, model="new")).decide(1.0)

    # More capacity is free next to the loud job, but it takes longer there.
    assert world.held("new").keys() == world.held("quiet").keys()


def test_n3_a_qos_check_as_in_the_worked_example():
    # 1:30 + 1:00 > 2:00: of 100 iterations 40 are left, each of 90 s; promised are 2 hours.
    forecast = RuntimePrediction(9000.0, 500, GIB, high_s=7200.0 * 1.25)
    assert forecast.remaining_s(0.6) == 3600.0
    assert is_violated(5400.0, 0.6, forecast._replace(high_s=7200.0))
    assert not is_violated(3600.0, 0.6, forecast._replace(high_s=7200.0))


def test_n3_the_preset_is_the_upper_bound_so_that_noise_is_no_violation():
    forecast = prediction(500, 100.0, high_s=120.0)

    assert not is_violated(60.0, 0.45, forecast)
    assert is_violated(70.0, 0.45, forecast)
    assert is_violated(60.0, 0.45, forecast._replace(high_s=None))


def test_n3_a_fraction_of_the_margin_may_be_held_back():
    forecast = prediction(300, runtime_s=100.0, high_s=120.0)
    assert not is_violated(60.0, 0.4, forecast)  # 60 s more: it will just be in time
    assert is_violated(60.0, 0.4, forecast, reserve=0.1)
    assert not is_violated(50.0, 0.4, forecast, reserve=0.5)


@given(st.floats(0.0, 1.0), st.floats(1.0, 1e6), st.floats(0.0, 0.5), st.floats(1.0, 2.0))
@example(0.25, 7.2, 0.5, 1.0)  # sums are rounded
def test_n3_a_task_that_is_as_fast_as_predicted_meets_its_slo(part, runtime_s, setup, high):
    setup_s = setup * runtime_s
    forecast = prediction(300, runtime_s, high_s=high * runtime_s, setup_s=setup_s)
    elapsed_s = part * runtime_s
    done = max(0.0, (elapsed_s - setup_s) / (runtime_s - setup_s))

    assert not is_violated(elapsed_s, done, forecast, reserve=0.5)


def test_n3_setup_ends_with_the_first_progress():
    forecast = prediction(500, 100.0, setup_s=20.0)

    assert forecast.remaining_s(0.0) == 100.0
    assert forecast.remaining_s(0.5) == 40.0
    assert forecast.remaining_s(1.0) == 0.0


def test_n3_without_a_forecast_no_slo_is_violated():
    assert not is_violated(1e9, 0.1, Forecasts(NOTHING, cluster(1)).prediction(job("1"), "v100"))


def late(world, job_id, now_s, done=0.0):
    """Set the progress of a job so that it is late."""
    world.progress.report(job_id, done, now_s, 0.0)


def test_n4_a_task_that_violates_its_slo_gets_a_tenth_of_the_device_at_each_check():
    world = World(cluster(1), Fixed(ls=prediction(500, 600.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    late(world, "ls", 60.0)
    assert world.decide(60.0) == [Resize("ls", (Allocation(0, 600, GIB),))]
    late(world, "ls", 120.0, 0.1)
    assert world.decide(120.0) == [Resize("ls", (Allocation(0, 700, GIB),))]
    late(world, "ls", 180.0, 0.4)
    assert world.decide(180.0) == []


def test_n4_with_a_known_speed_all_needed_steps_are_given_at_once():
    world = World(cluster(1), Fixed(ls=prediction(400, 600.0, high_s=630.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    world.progress.report("ls", 0.05, 60.0, 1 / 1200)  # twice as slow as predicted

    assert world.decide(60.0) == [Resize("ls", (Allocation(0, 800, GIB),))]
    world.progress.report("ls", 0.15, 120.0, 1 / 600)
    assert world.decide(120.0) == []


def test_n4_if_no_share_is_predicted_to_be_enough_steps_are_given_one_by_one():
    world = World(cluster(1), Fixed(ls=prediction(400, 100.0, high_s=110.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    world.progress.report("ls", 0.1, 60.0, 1 / 100)  # now as fast as predicted, but far behind

    assert world.decide(60.0) == [Resize("ls", (Allocation(0, 500, GIB),))]


def test_n4_steps_end_when_no_capacity_is_free():
    world = World(cluster(1), Fixed(ls=prediction(850, 600.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    for look in range(1, 5):
        late(world, "ls", 60.0 * look)
        world.decide(60.0 * look)

    assert world.held("ls") == {0: FULL_DEVICE_MILLI}


def test_n5_best_effort_tasks_of_the_device_are_shrunk_if_too_little_is_free():
    world = World(cluster(1), Fixed(ls=prediction(500, 600.0), be=prediction(480, 600.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True), job("be", model="be")).decide(0.0)
    late(world, "ls", 60.0)
    world.decide(60.0)

    assert world.held("ls") == {0: 600}
    assert world.held("be") == {0: 400}


def test_n5_shrunk_tasks_get_their_compute_back_when_it_is_free():
    world = World(cluster(1), Fixed(ls=prediction(500, 600.0), be=prediction(480, 600.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True), job("be", model="be")).decide(0.0)
    late(world, "ls", 60.0)
    world.decide(60.0)
    world.ledger.end("ls", Phase.FINISHED, 70.0)
    world.decide(120.0)

    assert world.held("be") == {0: 480}


def test_n6_a_best_effort_task_below_the_minimum_is_evicted_and_restarts_there():
    world = World(cluster(1), Fixed(ls=prediction(750, 600.0), be=prediction(250)), home_s=900.0)
    world.submit(job("ls", model="ls", latency_sensitive=True), job("be", model="be")).decide(0.0)
    late(world, "ls", 60.0)
    assert world.decide(60.0)[0] == Resize("be", (Allocation(0, 150, GIB),))
    late(world, "ls", 120.0)
    assert world.decide(120.0) == [Preempt("be"), Resize("ls", (Allocation(0, 950, GIB),))]

    world.ledger.end("ls", Phase.FINISHED, 170.0)
    world.decide(170.0)
    assert world.held("be") == {0: 250}


def test_n7_a_task_that_meets_its_slo_but_exceeds_its_predicted_use_is_paused():
    world = World(cluster(1), Fixed(ls=prediction(500, 6000.0, high_s=9000.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    world.usage.report("ls", 0.0, 900.0)
    late(world, "ls", 60.0, 0.02)
    assert world.decide(60.0) == [Pause("ls")]

    world.usage.report("ls", 60.0, 0.0)  # paused, it reads 0; its mean does not
    assert world.decide(60.0) == []
    world.usage.report("ls", 60.0, 0.0)
    late(world, "ls", 120.0, 0.02)
    assert world.decide(120.0) == [Resume("ls")]


def test_n7_the_compute_of_a_paused_task_is_not_allocated_to_others():
    world = World(cluster(1), Fixed(ls=prediction(500, 6000.0, high_s=9000.0), be=prediction(600)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    world.usage.report("ls", 0.0, 900.0)
    late(world, "ls", 60.0, 0.02)
    world.decide(60.0)
    world.submit(job("be", 61.0, model="be")).decide(61.0)
    assert world.phase("be") is Phase.PENDING

    world.usage.report("ls", 60.0, 0.0)
    world.decide(120.0)
    assert world.phase("ls") is Phase.RUNNING


def test_n7_a_paused_task_whose_slo_is_violated_is_resumed():
    world = World(cluster(1), Fixed(ls=prediction(500, 600.0, high_s=650.0)))
    world.submit(job("ls", model="ls", latency_sensitive=True)).decide(0.0)
    world.usage.report("ls", 0.0, 1000.0)
    late(world, "ls", 60.0, 0.1)
    assert world.decide(60.0) == [Pause("ls")]
    late(world, "ls", 120.0, 0.1)
    world.usage.report("ls", 119.0, 1000.0)
    assert Resume("ls") in world.decide(120.0)


def test_n9_steps_and_the_lowest_share_are_bounded():
    for bad in (
        {"step_milli": 0}, {"step_milli": 1001}, {"step_milli": 1.5}, {"least_milli": 0},
        {"check_s": 0.5}, {"check_s": math.nan}, {"overcommit": 0.9}, {"home_s": -1.0},
        {"ageing_s": 0.0}, {"ties": "last"}, {"reserve": -0.1}, {"reserve": math.nan},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"sharing: {next(iter(bad))}="):
            Sharing(**bad)


def test_n9_an_evicted_task_may_start_elsewhere_after_a_while():
    world = World(
        cluster(1, 1), Fixed(ls=prediction(1000, 600.0), be=prediction(1000)), home_s=90.0
    )
    world.submit(job("be", model="be"), job("other", model="be")).decide(0.0)
    world.submit(job("ls", 1.0, model="ls", latency_sensitive=True)).decide(1.0)
    (ended,) = (name for name in ("be", "other") if world.phase(name) is Phase.PENDING)
    (runs,) = {"be", "other"} - {ended}
    world.ledger.end(runs, Phase.FINISHED, 10.0)
    late(world, "ls", 10.0, 0.5)

    world.decide(10.0)
    assert world.phase(ended) is Phase.PENDING  # the device where it was is not free
    world.decide(91.0)
    assert world.phase(ended) is Phase.RUNNING


# In the simulator -----------------------------------------------------------------------------


def test_a_missing_forecast_means_an_exclusive_device():
    world = World(cluster(2), NOTHING)
    world.submit(job("1"), job("2"), job("3")).decide(0.0)

    assert world.ledger.capacity.compute_milli.tolist() == [0, 0]
    assert world.phase("3") is Phase.PENDING


def test_latency_sensitive_single_tasks_do_not_starve_a_latency_sensitive_gang():
    world = World(cluster(2), Fixed(one=prediction(1000)))
    world.submit(*(job(str(i), model="one", latency_sensitive=True) for i in (1, 2))).decide(0.0)
    world.submit(job("gang", 1.0, gpus=2, latency_sensitive=True)).decide(1.0)
    world.submit(job("next", 2.0, model="one", latency_sensitive=True)).decide(2.0)
    world.ledger.end("1", Phase.FINISHED, 3.0)
    world.decide(3.0)

    assert world.phase("next") is Phase.PENDING


def test_a_stream_of_single_tasks_does_not_starve_a_waiting_gang():
    jobs = [job("first", gpus=1, model="m")]
    jobs += [job(f"s{i}", float(i), model="m") for i in range(1, 40)]
    jobs.insert(3, job("gang", 2.5, gpus=2))
    ground_truth = {one.job_id: 10.0 for one in jobs}
    done = simulated(
        cluster(2), Sharing(), jobs, ground_truth, forecaster=Fixed(m=prediction(1000, 10.0))
    )

    ends = {one.job.job_id: one.end_s for one in done.results}
    assert ends["gang"] < 60.0
