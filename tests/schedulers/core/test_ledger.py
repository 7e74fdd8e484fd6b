"""Ledger: atomic batches, and the invariants of a cluster under any actions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from presage.errors import ImpossibleActionError
from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reject,
    Reserve,
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job_status import ENDED, WAITING, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue, priority_key
from tests.schedulers.clusters import GIB, cluster, job
from tests.support.slow_tests import examples

HALF = FULL_DEVICE_MILLI // 2


def ledger(*devices: int, a100: int = 0, jobs=()) -> Ledger:
    """Return a ledger of such nodes, optionally with a node of A100s; the jobs wait."""
    nodes = cluster(*devices).nodes + (cluster(a100, kind="a100").nodes if a100 else ())
    names = (Node(f"n{i}", n.devices, n.kind, n.memory_bytes) for i, n in enumerate(nodes))
    made = Ledger(
        Cluster(tuple(names)), Queue(lambda job, status: (*priority_key(job), job.submit_s))
    )
    for one in jobs:
        assert made.submit(one, one.submit_s) == ""
    return made


def part(device: int, compute_milli: int = HALF, memory_bytes: int = 4 * GIB) -> Allocation:
    return Allocation(device, compute_milli, memory_bytes)


def picture(made: Ledger):
    """Return the complete visible state of a ledger."""
    return (
        {job_id: made.status(job_id) for job_id in made.jobs},
        list(made.running.items()),
        [waiting.job_id for waiting in made.pending],
        [made.jobs_on(device) for device in range(made.cluster.devices)],
        [made.idle.count_on(node) for node in range(len(made.cluster.nodes))],
        made.capacity.compute_milli.tolist(),
        made.capacity.memory_bytes.tolist(),
        made.down,
        made.failed_devices,
    )


def test_a_started_job_holds_its_allocations_until_it_ends():
    made = ledger(2, jobs=[job("a", gpus=2)])
    made.apply([Start("a", made.cluster.full_allocations)], 5.0)

    assert made.status("a").phase is Phase.RUNNING
    assert made.idle.count == 0
    assert made.capacity.compute_milli.tolist() == made.capacity.memory_bytes.tolist() == [0, 0]
    change = made.end("a", Phase.FINISHED, 9.0)
    assert change.after.attained_s == 8.0  # device-seconds
    assert picture(made)[3:] == picture(ledger(2))[3:]


@pytest.mark.parametrize(
    ("impossible", "why"),
    [
        (
            Start("b", (part(0, FULL_DEVICE_MILLI),)),
            "n0/0 has 500 thousandths of its compute left, not 1000",
        ),
        (Start("b", (part(0, 1, 13 * GIB),)), "bytes of memory left"),
        (Start("b", ()), "the gang needs 1 members, got 0"),
        (Start("gang", (part(1), part(1))), "another member of the job is on n0/1"),
        (Start("gang", (part(1),)), "the gang needs 2 members, got 1"),
        (Start("b", (part(7),)), "there is no device 7"),
        (Start("b", (part(1, 0),)), "allocation of 0 thousandths"),
        (Start("a", (part(1),)), "it is running"),
        (Start("picky", (part(1),)), "n0/1 is a v100, and the job runs on a100 only"),
        (Start("missing", (part(1),)), "there is no such job"),
        (Preempt("b"), "it is pending"),
        (Pause("b"), "it is pending"),
        (Resume("a"), "it is running"),
        (Resize("b", (part(1),)), "it is pending"),
        (Migrate("a", (part(0), part(1))), "the gang needs 1 members, got 2"),
        (Reject("a", "enough"), "it is running"),
    ],
)
def test_a_batch_with_an_impossible_action_changes_nothing(impossible, why):
    others = [job("a"), job("b"), job("gang", gpus=2), job("c"), job("picky", kinds=("a100",))]
    made = ledger(2, a100=1, jobs=others)
    made.apply([Start("a", (part(0),))], 1.0)
    before = picture(made)

    with pytest.raises(ImpossibleActionError, match="action 3, ") as error:
        made.apply([Start("c", (part(1),)), Preempt("c"), impossible], 2.0)
    assert why in str(error.value)
    assert picture(made) == before


def test_a_refused_batch_leaves_the_order_of_running_jobs_and_of_the_queue():
    made = ledger(3, jobs=[job("a"), job("b"), job("c"), job("d"), job("e", gpus=3)])
    made.apply([Start(name, (part(i),)) for i, name in enumerate("abc")], 1.0)
    before = picture(made)

    with pytest.raises(ImpossibleActionError):
        made.apply([Preempt("b"), Preempt("a"), Start("d", (part(0),)), Resume("c")], 2.0)
    assert picture(made) == before


def test_a_paused_job_holds_its_memory_and_frees_its_compute():
    made = ledger(1, jobs=[job("a"), job("b")])
    made.apply([Start("a", (part(0, FULL_DEVICE_MILLI, 10 * GIB),)), Pause("a")], 1.0)
    made.apply([Start("b", (part(0, FULL_DEVICE_MILLI, 6 * GIB),))], 2.0)

    with pytest.raises(ImpossibleActionError, match="0 thousandths"):
        made.apply([Resume("a")], 3.0)
    made.apply([Preempt("b"), Resume("a")], 3.0)
    assert made.status("a").attained_at(5.0) == 2.0
    assert made.capacity.memory_bytes.tolist() == [6 * GIB]


def test_an_elastic_gang_runs_with_any_number_within_its_range():
    made = ledger(4, jobs=[job("a", gpus=4, min_gpus=2)])
    made.apply([Start("a", made.cluster.full_allocations[:2])], 0.0)
    made.apply([Resize("a", made.cluster.full_allocations)], 10.0)
    with pytest.raises(ImpossibleActionError, match="the gang needs 2 to 4 members, got 1"):
        made.apply([Resize("a", made.cluster.full_allocations[:1])], 20.0)

    assert made.status("a").attained_at(20.0) == 2 * 10 + 4 * 10
    assert made.idle.count == 0


def test_an_elastic_gang_may_grow_beyond_its_request():
    made = ledger(4, jobs=[job("a", gpus=1, max_gpus=3)])
    made.apply([Start("a", made.cluster.full_allocations[:1])], 0.0)
    made.apply([Resize("a", made.cluster.full_allocations[:3])], 1.0)
    with pytest.raises(ImpossibleActionError, match="the gang needs 1 to 3 members, got 4"):
        made.apply([Resize("a", made.cluster.full_allocations)], 2.0)
    assert len(made.status("a").allocations) == 3


def test_best_effort_does_not_take_devices_of_a_waiting_latency_sensitive_job():
    urgent = job("urgent", latency_sensitive=True, memory_bytes=8 * GIB)
    made = ledger(2, jobs=[job("patient"), job("small"), urgent])

    with pytest.raises(
        ImpossibleActionError, match=r"'patient' takes devices .* 'urgent' would fit"
    ):
        made.apply([Start("patient", made.cluster.full_allocations[:1])], 0.0)
    made.apply([Start("small", (part(0, HALF),))], 0.0)  # it asks for a whole device's compute
    made.apply(
        [
            Preempt("small"),
            Start("urgent", made.cluster.full_allocations[:1]),
            Start("patient", made.cluster.full_allocations[1:]),
        ],
        1.0,
    )
    assert list(made.running) == ["urgent", "patient"]


def test_a_job_that_can_never_run_is_rejected_at_submission():
    made = ledger(4, 4)

    assert (
        made.submit(job("large", gpus=9), 0.0)
        == "the gang needs 9 devices, and the cluster has 8 for it"
    )
    assert made.submit(job("fat", memory_bytes=17 * GIB), 0.0) == (
        "the job requests 17 GiB of device memory, and devices have at most 16"
    )
    assert made.submit(job("elastic", gpus=9, min_gpus=8), 0.0) == ""
    assert "the cluster has no such device" in made.submit(job("other", kinds=("a100",)), 0.0)
    assert made.status("large").phase is made.status("other").phase is Phase.REJECTED
    with pytest.raises(ImpossibleActionError, match="'large' was submitted before"):
        made.submit(job("large"), 1.0)


def test_a_kind_that_is_too_small_is_excluded_and_without_another_a_job_can_never_run():
    devices = Cluster((Node("n0", 1, "v100", 16 * GIB), Node("n1", 1, "a100", 40 * GIB)))
    made = Ledger(devices, Queue(lambda job, status: (job.submit_s,)))
    for one in (job("any"), job("only", kinds=("v100", "v100"))):
        made.submit(one, 0.0)
    assert made.exclude("any", "v100") == ""
    assert made.jobs["any"].kinds == ("a100",)
    for job_id, kind in (("any", "a100"), ("only", "v100")):
        assert made.exclude(job_id, kind) == f"the job does not fit into the memory of {kind}"


def test_a_failed_node_has_no_capacity_until_it_is_repaired():
    made = ledger(2, 2, jobs=[job("a", gpus=3), job("b")])
    made.apply([Start("a", made.cluster.full_allocations[1:])], 0.0)
    changes = made.fail(0, 5.0)

    assert [change.job.job_id for change in changes] == ["a"]
    assert made.fail(0, 6.0) == []
    assert made.idle.count == 2
    with pytest.raises(ImpossibleActionError, match="n0/0 is down"):
        made.apply([Start("b", (part(0),))], 6.0)
    made.repair(0, 7.0)
    made.repair(0, 8.0)
    assert picture(made)[3:] == picture(ledger(2, 2))[3:]


def test_an_elastic_job_continues_on_the_devices_that_survive_a_node():
    jobs = [job("a", gpus=4, min_gpus=2), job("rigid", gpus=2), job("b", gpus=2, min_gpus=2)]
    made = ledger(2, 2, 4, jobs=jobs)
    whole = made.cluster.full_allocations
    made.apply([Start("a", whole[:4]), Start("rigid", whole[4:6])], 0.0)
    changes = made.fail(0, 5.0)

    assert [(change.job.job_id, change.after.phase) for change in changes] == [("a", Phase.RUNNING)]
    assert made.status("a").allocations == whole[2:4]
    assert made.status("a").attained_at(7.0) == 4 * 5 + 2 * 2
    assert made.status("a").starts == 1
    assert [change.after.phase for change in made.fail(1, 8.0)] == [Phase.PENDING]  # none is left
    assert [change.after.phase for change in made.fail(2, 9.0)] == [Phase.PENDING]  # not elastic
    for node in range(3):
        made.repair(node, 10.0)
    assert made.idle.count == 8


def test_a_paused_elastic_job_returns_to_the_queue_when_a_node_fails():
    made = ledger(1, 1, jobs=[job("a", gpus=2, min_gpus=1)])
    made.apply([Start("a", made.cluster.full_allocations)], 0.0)
    made.apply([Pause("a")], 1.0)
    assert [change.after.phase for change in made.fail(0, 2.0)] == [Phase.PENDING]


def test_a_reservation_holds_devices_until_it_expires():
    made = ledger(2, 2, jobs=[job("gang", gpus=3), job("b"), job("c", gpus=2)])
    whole = made.cluster.full_allocations
    made.apply([Reserve("gang", whole[:2], 10.0)], 0.0)

    assert made.status("gang").phase is Phase.RESERVED
    assert [waiting.job_id for waiting in made.pending] == ["b", "c"]
    with pytest.raises(ImpossibleActionError, match="n0/0 has 0 thousandths"):
        made.apply([Start("b", whole[:1])], 5.0)
    made.apply([Reserve("gang", whole[1:3], 20.0)], 6.0)  # elsewhere, and for longer
    made.apply([Start("b", whole[:1])], 7.0)
    assert made.expire(19.9) == []
    # The next decision finds it free, even if the expiry was not reported to the ledger.
    changes = made.apply([Start("c", whole[1:3])], 20.0)
    assert [(change.job.job_id, change.after.phase) for change in changes] == [
        ("gang", Phase.PENDING), ("c", Phase.RUNNING)
    ]  # fmt: skip
    assert made.status("gang").waited_s == 20.0


def test_a_gang_starts_from_its_reservation_with_all_members():
    made = ledger(2, jobs=[job("gang", gpus=2)])
    whole = made.cluster.full_allocations
    made.apply([Reserve("gang", whole[:1], 10.0)], 0.0)
    with pytest.raises(ImpossibleActionError, match="the gang needs 2 members, got 1"):
        made.apply([Start("gang", whole[:1])], 1.0)
    with pytest.raises(ImpossibleActionError, match="the reservation would expire at 1"):
        made.apply([Reserve("gang", whole, 1.0)], 1.0)
    made.apply([Start("gang", whole)], 2.0)

    assert made.status("gang")[:3] == (Phase.RUNNING, 2.0, whole)
    assert made.expire(99.0) == []
    made.apply([Preempt("gang"), Reserve("gang", whole, 200.0), Preempt("gang")], 100.0)
    assert made.status("gang").phase is Phase.PENDING
    assert made.idle.count == 2


def test_jobs_of_an_earlier_ledger_are_adopted_with_their_status():
    made = ledger(2, 2, jobs=[job("runs"), job("keeps", gpus=4), job("waits"), job("late", 3.0)])
    whole = made.cluster.full_allocations
    made.apply([Start("runs", whole[:1]), Reserve("keeps", whole[1:3], 10.0)], 4.0)
    made.apply([Reserve("late", whole[3:], 5.0)], 4.0)
    made.expire(5.0)

    again = ledger(2, 2)
    for job_id, one in made.jobs.items():
        assert again.adopt(one, made.status(job_id)) == ""
    assert picture(again) == picture(made)
    assert again.status("late").rollbacks == 1
    assert again.status("late").rolled_back_s == 5.0
    with pytest.raises(ImpossibleActionError, match="n0/0 has 0 thousandths"):
        again.adopt(job("more"), made.status("runs"))
    assert picture(again) == picture(made)
    assert "the gang needs 5" in again.adopt(job("large", gpus=5), made.status("waits"))


def test_best_effort_jobs_do_not_take_a_waiting_gangs_devices_one_by_one():
    gang = job("gang", gpus=2, latency_sensitive=True)
    made = ledger(2, 1, jobs=[job("first", latency_sensitive=True), gang, job("b"), job("c")])
    whole = made.cluster.full_allocations
    made.apply([Start("first", whole[2:])], 0.0)

    with pytest.raises(ImpossibleActionError, match="best-effort job 'c' takes devices"):
        made.apply([Start("c", whole[1:2])], 1.0)  # one device is left, and it needs both
    with pytest.raises(ImpossibleActionError, match="best-effort job 'b' takes devices"):
        made.apply([Start("b", whole[:1]), Start("c", whole[1:2])], 0.0)


WHOLE_DEVICE = Allocation(0, FULL_DEVICE_MILLI, 16 * GIB)
# Return values of policies are not type-checked.
ANY_START: Any = Start
ANY_GRANT: Any = Allocation
ANY_RESERVE: Any = Reserve
ANY_REJECT: Any = Reject
ANY_WAKE: Any = Wake


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("start", "action 1: expected an action, got str"),
        (object(), "action 1: expected an action, got object"),
        (ANY_START(7, (WHOLE_DEVICE,)), "action 1: expected a job id, got int"),
        (ANY_START("a", None), "allocations: expected a tuple, got NoneType"),
        (ANY_START("a", {WHOLE_DEVICE}), "allocations: expected a tuple, got set"),
        (
            ANY_START("a", ((0, FULL_DEVICE_MILLI, GIB),)),
            "expected an Allocation, got tuple",
        ),
        (ANY_START("a", (ANY_GRANT(0, 500.7, GIB),)), "compute_milli: expected an int, got"),
        (ANY_START("a", (ANY_GRANT(np.int64(0), 1, GIB),)), "device: expected an int, got"),
        (ANY_START("a", (ANY_GRANT(0, 1, 10**5000),)), "memory_bytes does not fit into 64 bits"),
        (ANY_RESERVE("a", (WHOLE_DEVICE,), "soon"), "expected a time in seconds, got str"),
        (ANY_RESERVE("a", (WHOLE_DEVICE,), 10**400), "expected a time that fits into a float"),
        (ANY_REJECT("a", None), "reason: expected a str, got NoneType"),
        (ANY_WAKE("soon"), "expected a time in seconds, got str"),
        (ANY_WAKE(np.float32(1)), "expected a time in seconds, got float32"),
        (Wake(float("nan")), "expected a time in seconds, got nan"),
        (Wake(10**400), "expected a time that fits into a float"),
    ],
)
def test_invalid_return_values_of_a_policy_are_rejected_with_a_reason(
    action: Any, message: str
) -> None:
    made = ledger(1, jobs=[job("a")])
    with pytest.raises(ImpossibleActionError, match=re.escape(message)):
        made.apply([action], 0.0)
    assert made.idle.count == 1


class AnyActions(RuleBasedStateMachine):
    """Any actions in any order: the invariants hold, and a rejection changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.made = ledger(2, 3)
        self.now_s = 0.0

    jobs = st.integers(0, 8).map(str)
    shares = st.sampled_from((1, 300, HALF, FULL_DEVICE_MILLI))
    memories = st.sampled_from((0, 4 * GIB, 12 * GIB, 16 * GIB))
    allocations = st.lists(
        st.builds(Allocation, st.integers(0, 5), shares, memories), max_size=4
    ).map(tuple)
    actions = st.one_of(
        st.builds(Start, jobs, allocations),
        st.builds(Reserve, jobs, allocations, st.floats(0, 200)),
        st.builds(Preempt, jobs),
        st.builds(Resize, jobs, allocations),
        st.builds(Migrate, jobs, allocations),
        st.builds(Pause, jobs),
        st.builds(Resume, jobs),
        st.builds(Reject, jobs, st.just("no")),
        st.builds(Wake, st.floats(0, 9)),
    )

    @rule(
        job_id=jobs, gpus=st.integers(1, 6), least=st.integers(0, 2), more=st.integers(0, 2),
        urgent=st.booleans(), priority=st.integers(0, 1),
    )  # fmt: skip
    def submit(self, job_id, gpus, least, more, urgent, priority):
        if job_id not in self.made.jobs:
            self.made.submit(
                job(
                    job_id, self.now_s, gpus=gpus, min_gpus=min(least, gpus), max_gpus=gpus + more,
                    latency_sensitive=urgent, priority=priority,
                ),
                self.now_s,
            )  # fmt: skip

    @rule(batch=st.lists(actions, max_size=5))
    def decide(self, batch: list[Action]):
        before = picture(self.made)
        try:
            self.made.apply(batch, self.now_s)
        except ImpossibleActionError:
            assert picture(self.made) == before

    @rule(node=st.integers(0, 1), repaired=st.booleans())
    def fault(self, node, repaired):
        if repaired:
            self.made.repair(node, self.now_s)
        else:
            self.made.fail(node, self.now_s)

    @rule(device=st.integers(0, 4), repaired=st.booleans())
    def device_fault(self, device, repaired):
        node = self.made.cluster.node_of[device]
        if repaired:
            self.made.repair(node, self.now_s, device)
        else:
            self.made.fail(node, self.now_s, device)

    @rule(job_id=jobs, phase=st.sampled_from((Phase.FINISHED, Phase.FAILED)))
    def end(self, job_id, phase):
        if job_id in self.made.running:
            self.made.end(job_id, phase, self.now_s)

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds):
        self.now_s += seconds

    @invariant()
    def nothing_is_held_that_is_not_there(self):
        made = self.made
        for device, whole in enumerate(made.cluster.full_allocations):
            node = made.cluster.node_of[device]
            statuses = {job_id: made.status(job_id) for job_id in made.jobs_on(device)}
            held = [
                (allocation, status.phase)
                for status in statuses.values()
                for allocation in status.allocations
                if allocation.device == device
            ]
            down = node in made.down or device in made.failed_devices
            assert made.is_down(device) == made.outages.is_down(made.device_ids[device]) == down
            compute = sum(g.compute_milli for g, phase in held if phase is not Phase.PAUSED)
            memory = sum(g.memory_bytes for g, _ in held)
            assert not (down and held)
            assert (
                made.capacity.compute_milli[device]
                == (0 if down else FULL_DEVICE_MILLI - compute)
                >= 0
            )
            assert (
                made.capacity.memory_bytes[device]
                == (0 if down else whole.memory_bytes - memory)
                >= 0
            )
            is_idle = not held and not down
            assert made.idle.is_idle(device) == is_idle

    @invariant()
    def a_gang_runs_with_as_many_as_it_needs_or_with_none(self):
        for job_id, one in self.made.jobs.items():
            status = self.made.status(job_id)
            least = {Phase.RUNNING: one.fewest_gpus, Phase.PAUSED: one.fewest_gpus}
            least[Phase.RESERVED] = 1
            assert (
                (least[status.phase] <= len(status.allocations) <= one.gpus)
                if status.phase in least
                else (status.allocations == ())
            )
            assert len({allocation.device for allocation in status.allocations}) == len(
                status.allocations
            )

    @invariant()
    def every_job_is_in_one_phase(self):
        made = self.made
        pending = [waiting.job_id for waiting in made.pending]
        for job_id in made.jobs:
            phase = made.status(job_id).phase
            assert (job_id in pending) == (phase is Phase.PENDING)
            assert (job_id in made.running) == (phase is Phase.RUNNING)
            assert (phase in ENDED) + (phase in WAITING) + (
                phase in (Phase.RUNNING, Phase.PAUSED)
            ) == 1
        assert len(pending) == len(set(pending)) == len(made.pending)

    @rule()
    def expire(self):
        self.made.expire(self.now_s)
        statuses = [self.made.status(job_id) for job_id in self.made.jobs]
        assert all(one.until_s > self.now_s for one in statuses if one.phase is Phase.RESERVED)

    @invariant()
    def who_is_urgent_is_first(self):
        waiting = list(self.made.pending)
        assert waiting == sorted(waiting, key=lambda one: (*priority_key(one), one.submit_s))
        assert self.made.pending.first() == (waiting[0] if waiting else None)


TestAnyActions = AnyActions.TestCase
TestAnyActions.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
