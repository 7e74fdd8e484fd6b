"""The contract of backends, by one suite for all of them: the simulator, live clusters, gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.schedulers.core.action import Action, Migrate, Pause, Preempt, Resume, Start, Wake
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.backend import Backend, Decision, reconcile
from presage.schedulers.core.policy import Policy
from presage.schedulers.kubernetes.gate.pod_gang import group_pods
from presage.schedulers.kubernetes.gate.writes import EmitEvent
from presage.schedulers.live.controller.agents_backend import AgentsBackend
from presage.schedulers.policies.best_fit import BestFit
from presage.schedulers.simulator.simulation import Simulation
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.testing.checked_policy import picture_of
from tests.schedulers.clusters import cluster, job, simulated
from tests.schedulers.kubernetes.gated import gated_cluster
from tests.schedulers.kubernetes.manifests import node
from tests.schedulers.live.agent.test_node_core import Node
from tests.schedulers.live.controller.test_core import V100, World


class Scripted(Policy):
    """Policy that decides what a test says, and counts its decisions."""

    def __init__(self, decide: Callable[[Any], Sequence[Action]] = lambda state: ()) -> None:
        self._decide = decide
        self.decisions = 0

    def decide(self, state, forecasts, rng):
        self.decisions += 1
        return self._decide(state)


@dataclass
class System:
    """A system of one node with two devices, and with one pending job of one device.

    Attributes
    ----------
    backend : callable
        Returns the backend of the next pass.
    settle : callable
        Lets the system carry out what a backend was given to apply.
    """

    backend: Callable[[], Backend]
    settle: Callable[[Any], None]
    now_s: float

    def reconcile(self, decide: Callable[[Any], Sequence[Action]]) -> Decision:
        backend = self.backend()
        decision = reconcile(backend, Scripted(decide), Random(0), self.now_s)
        self.settle(backend)
        return decision

    def view(self):
        view = self.backend().observe(self.now_s)
        assert view is not None
        return view


@contextmanager
def simulator() -> Iterator[System]:
    simulation = simulated(cluster(2), Scripted(), [job("a")], {"a": 9.0}, stop_on_impossible=False)
    yield System(lambda: simulation, lambda backend: None, 0.0)


@contextmanager
def controller() -> Iterator[System]:
    world = World(BestFit())
    world.report("n0", [V100, V100])
    world.submit("a")

    def backend() -> AgentsBackend:
        view = world.core.view(world.now_s)
        assert view is not None
        return AgentsBackend(world.core.state, view, world.now_s)

    yield System(backend, lambda backend: world.write(backend.records), world.now_s)


@contextmanager
def agent() -> Iterator[System]:
    node = Node()
    node.order("a", FULL_DEVICE_MILLI)
    node.core.apply(pb.NodeCommands(version=1, tasks=node.orders.values()), 1.0)
    yield System(lambda: node.core.backend, lambda backend: None, 1.0)


@contextmanager
def kubernetes() -> Iterator[System]:
    with gated_cluster(node("n0", gpus=2)) as cluster:
        cluster.create_gang("a", 1)

        def backend() -> Backend:
            snapshot = cluster.snapshot()
            gangs = group_pods(snapshot.pods.values(), snapshot.pod_groups)
            found = cluster.gate.backend(snapshot, gangs)
            assert found is not None
            return found

        def settle(backend: Any) -> None:
            for write in backend.writes:
                if not isinstance(write, EmitEvent):
                    cluster.writer.write(write)

        yield System(backend, settle, cluster.now_s)


@pytest.fixture(params=[simulator, controller, agent, kubernetes])
def system(request) -> Iterator[System]:
    with request.param() as made:
        yield made


def start(state: Any, device: int = 0) -> Start:
    whole = state.cluster.full_allocations[device]
    return Start(state.pending.first().job_id, (whole,))


def test_a_system_that_does_not_change_is_observed_alike(system):
    first, again = system.view(), system.view()

    assert [one.gpus for one in first.state.pending] == [1]
    assert first.state.cluster.devices == 2
    assert picture_of(first.state) == picture_of(again.state)


def test_a_start_is_carried_out_and_observed(system):
    decision = system.reconcile(lambda state: [start(state, device=1)])
    assert [type(action) for action in decision.actions] == [Start]
    assert not decision.rejections

    state = system.view().state
    assert len(state.pending) == 0
    assert (len(state.jobs_on(0)), len(state.jobs_on(1))) == (0, 1)
    (status,) = state.running.values()
    assert [allocation.device for allocation in status.allocations] == [1]


def test_an_observed_job_is_not_started_again(system):
    started: list[Start] = []

    def decide(state: Any) -> Sequence[Action]:
        started.extend(() if started else [start(state)])
        return started

    system.reconcile(decide)
    again = system.reconcile(decide)

    assert not again.actions
    assert len(again.rejections) == 1
    assert len(system.view().state.running) == 1


IMPOSSIBLE: list[Callable[[Any], Any]] = [
    lambda state: Start("no such job", (state.cluster.full_allocations[0],)),
    lambda state: Start(state.pending.first().job_id, (Allocation(99, 1, 1),)),
    lambda state: Start(state.pending.first().job_id, state.cluster.full_allocations[:2]),
    lambda state: Start(state.pending.first().job_id, [state.cluster.full_allocations[0]]),  # type: ignore[arg-type]
    lambda state: Start(state.pending.first().job_id, (Allocation("0", 1, 1),)),  # type: ignore[arg-type]
    lambda state: Resume(state.pending.first().job_id),
    lambda state: Wake(float("nan")),
    lambda state: "garbage",
    lambda state: None,
]


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
def test_an_impossible_action_changes_nothing_and_is_explained(system, impossible):
    before = picture_of(system.view().state)
    decision = system.reconcile(lambda state: [impossible(state)])

    assert not decision.actions
    assert not decision.changes
    assert [bool(rejection.why) for rejection in decision.rejections] == [True]
    assert picture_of(system.view().state) == before


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
def test_the_possible_part_of_a_decision_is_carried_out_unless_the_backend_is_atomic(
    system, impossible
):
    decision = system.reconcile(lambda state: [start(state), impossible(state)])

    carried_out = 0 if system.backend().is_atomic else 1
    assert len(decision.actions) == len(decision.changes) == carried_out
    assert len(decision.rejections) == 1
    assert len(system.view().state.running) == carried_out


def test_a_migration_is_observed_or_rejected(system):
    system.reconcile(lambda state: [start(state)])
    decision = system.reconcile(
        lambda state: [Migrate(next(iter(state.running)), (state.cluster.full_allocations[1],))]
    )

    state = system.view().state
    if decision.rejections:
        assert "Migrate" in decision.rejections[0].why
        assert state.jobs_on(0)
    else:
        assert state.jobs_on(1)
    assert bool(decision.rejections) == (not isinstance(system.backend(), Simulation))


def test_an_empty_decision_is_not_applied(system, monkeypatch):
    backend = system.backend()
    monkeypatch.setattr(backend, "apply", lambda decision, now_s: pytest.fail("applied"))
    policy = Scripted()

    assert reconcile(backend, policy, Random(0), system.now_s) == Decision()
    assert policy.decisions == 1


@pytest.mark.parametrize("change", [Preempt, Pause])
def test_a_change_of_a_running_job_is_observed_or_rejected(system, change):
    system.reconcile(lambda state: [start(state)])
    decision = system.reconcile(lambda state: [change(next(iter(state.running)))])

    is_running = len(system.view().state.running) == 1
    assert is_running == bool(decision.rejections)


@pytest.mark.parametrize("returned", [lambda: None, lambda: iter([]), lambda: 3])
def test_a_decision_that_is_not_a_list_of_actions_is_rejected(system, returned):
    decision = system.reconcile(lambda state: returned())

    (rejection,) = decision.rejections
    assert rejection.why.startswith("decide returned ")


def test_an_exception_of_a_policy_is_a_rejection_unless_the_backend_is_atomic(system):
    def fail(state: Any) -> Sequence[Action]:
        raise ZeroDivisionError("no devices\nat all")

    if system.backend().is_atomic:
        with pytest.raises(ZeroDivisionError):
            system.reconcile(fail)
        return
    (rejection,) = system.reconcile(fail).rejections
    assert rejection.why.startswith("decide raised ZeroDivisionError: no devices at all (tests/")
