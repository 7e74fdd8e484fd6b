"""Tests of updates of the scheduling view; the law of the live cluster compares it at random."""

import pytest

from presage.schedulers.live.controller.controller_core import END_S
from presage.schedulers.live.controller.explanations.explain import find_candidates
from presage.schedulers.live.controller.journal.records import Held, PriorityChanged
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.controller.scheduling_view.rebuilt import rebuilt_content, view_content
from tests.schedulers.live.controller.test_core import (
    GIB,
    K80,
    LEASE_S,
    V100,
    FakeForecaster,
    World,
    task,
)


@pytest.fixture
def world():
    """Return a cluster of three nodes like each other with two running jobs, and one waiting."""
    made = World()
    for node in ("a", "b", "c"):
        made.report(node, (V100, V100))
    made.submit("x", "y", model="800")
    made.decide()
    for node in ("a", "b", "c"):
        report_tasks(made, node)
    made.submit("gang", gpus=2)
    return made


def report_tasks(world, node):
    here = world.core.state.at_node.get(node, {})
    allocations = [pb.Allocation(device=0, compute_milli=800, memory_bytes=4 * GIB)]
    rows = [task(one, allocations=allocations) for one in here]
    world.report(node, (V100, V100), rows)


def is_kept(world, before):
    """Return whether the view is the same one, and as if it was built now."""
    assert view_content(world.core, world.now_s) == rebuilt_content(world.core, world.now_s)
    return world.core.current_view is before


def test_a_drained_node_and_its_return_update_the_view(world):
    view = world.core.view(world.now_s)
    node = world.core.state.jobs["x"].node

    world.write(world.core.drain(node, undo=False, evict=False, now_s=world.now_s))
    assert is_kept(world, view)
    assert not view.has_node(node)
    assert "x" not in view.ledger.jobs

    world.write(world.core.drain(node, undo=True, evict=False, now_s=world.now_s))
    assert is_kept(world, view)
    assert view.has_node(node)
    assert "x" in view.ledger.jobs


def test_a_lost_node_updates_the_view_and_its_jobs_start_elsewhere(world):
    view = world.core.view(world.now_s)
    lost = world.core.state.jobs["x"].node
    for world.now_s in range(0, int(LEASE_S + END_S) + 8):
        for node in {"a", "b", "c"} - {lost}:
            report_tasks(world, node)
        assert is_kept(world, view)
        world.write(world.core.find_lost(world.now_s, world.now_s))
        assert is_kept(world, view)
        world.decide()

    assert world.core.state.nodes[lost].lost
    assert world.core.state.jobs["x"].node != lost
    world.report(lost, (V100, V100))
    assert is_kept(world, view)
    assert view.has_node(lost)


def test_new_nodes_like_others_update_the_view_and_get_jobs(world):
    view = world.core.view(world.now_s)
    world.report("d", (V100, V100))
    world.report("e", (V100, V100))
    assert is_kept(world, view)
    assert view.has_node("d")
    assert view.available_nodes == 5
    assert view.cluster.devices == 10
    assert view.device("e", 1) == 9
    assert view.node_of(9) == "e"

    world.submit(*(f"w{number}" for number in range(9)), model="800")
    world.decide()
    assert {"d", "e"} <= {world.core.state.jobs[f"w{number}"].node for number in range(9)}
    for node in ("a", "b", "c", "d", "e"):
        report_tasks(world, node)
    assert is_kept(world, view)


def test_a_new_node_that_leaves_and_returns_updates_the_view(world):
    view = world.core.view(world.now_s)
    world.report("d", (V100, V100))
    for undo in (False, True):
        assert is_kept(world, view)
        assert view.has_node("d") is not undo
        world.write(world.core.drain("d", undo=undo, evict=False, now_s=world.now_s))
    assert is_kept(world, view)
    assert view.has_node("d")


def test_a_gang_that_needs_more_devices_than_there_are_is_pending_once_a_node_joins(world):
    world.submit("elastic", gpus=8, min_gpus=8, max_gpus=9)
    view = world.core.view(world.now_s)
    assert "elastic" in view.unschedulable

    world.report("d", (V100, V100))
    assert is_kept(world, view)
    assert "elastic" not in view.unschedulable
    assert "elastic" in {job.job_id for job in view.ledger.pending}


def test_a_job_that_was_unschedulable_and_is_held_stays_so_once_a_node_joins(world):
    world.submit("elastic", gpus=8, min_gpus=8, max_gpus=9)
    view = world.core.view(world.now_s)
    world.write([Held("elastic", True, "ann", False, world.now_s)])
    world.report("d", (V100, V100))
    assert is_kept(world, view)
    world.decide()
    assert world.stage("elastic") is Stage.WAITING

    world.write([Held("elastic", False, "ann", False, world.now_s)])
    assert is_kept(world, view)
    assert "elastic" in {job.job_id for job in view.ledger.pending}


def test_nodes_with_new_names_replace_lost_ones_in_the_view(world):
    """A cluster that grows and shrinks has other node names each time."""
    for number in range(12):
        world.report(f"new{number}", (V100, V100))
        assert f"new{number}" in world.core.view(world.now_s).nodes
        for _ in range(int(LEASE_S + END_S) + 8):
            world.now_s += 1.0
            for node in ("a", "b", "c"):
                report_tasks(world, node)
            world.write(world.core.find_lost(world.now_s, world.now_s))
            world.core.view(world.now_s)
    assert world.core.state.nodes["new0"].lost
    assert len(world.core.current_view.nodes) <= 2 * 3 + 2


def test_a_node_of_a_new_size_or_kind_and_other_devices_make_a_new_view(world):
    for devices in ((V100,), (V100, V100), (K80, K80), (V100, K80)):
        view = world.core.view(world.now_s)
        world.report("d", devices)
        assert not is_kept(world, view)


def test_the_last_node_of_a_kind_or_size_leaves_the_view(world):
    """A job that only this node could run must not wait in the queue, and block others."""
    world.report("d", (K80,))
    world.report("e", (V100, V100, V100))
    for node in ("d", "e"):
        view = world.core.view(world.now_s)
        world.write(world.core.drain(node, undo=False, evict=False, now_s=world.now_s))
        assert not is_kept(world, view)
        assert node not in world.core.current_view.nodes


def test_the_view_is_made_again_for_a_job_that_needs_more_devices_than_are_available(world):
    world.write(world.core.drain("a", undo=False, evict=False, now_s=world.now_s))
    view = world.core.view(world.now_s)
    world.submit("elastic", gpus=5, min_gpus=5, max_gpus=6)

    assert not is_kept(world, view)
    assert "elastic" in world.core.current_view.unschedulable


def test_a_priority_of_a_running_job_updates_its_node(world):
    view = world.core.view(world.now_s)
    world.write([PriorityChanged("x", 7, world.now_s)])

    assert is_kept(world, view)
    assert view.ledger.jobs["x"].priority == 7


def test_new_forecasts_change_the_order_of_the_queue_only(world):
    for node in ("a", "b", "c"):
        world.write(world.core.drain(node, undo=node == "a", evict=False, now_s=world.now_s))
    world.submit("long", model="900")
    world.submit("short", model="950")
    view = world.core.view(world.now_s)
    assert [job.job_id for job in view.ledger.pending] == ["gang", "long", "short"]

    class Other(FakeForecaster):
        def _of(self, job, kind):
            found = super()._of(job, kind)
            return found and found._replace(runtime_s=1.0 if job.job_id == "short" else 50.0)

    world.known, world.forecaster = {}, Other()
    assert is_kept(world, view)
    assert view.forecasts.runtime_s(view.ledger.jobs["short"]) == 1.0
    assert {job.job_id for job in view.ledger.pending} == {"gang", "long", "short"}


def test_explanations_name_no_unavailable_device(world):
    world.write(world.core.drain("b", undo=False, evict=False, now_s=world.now_s))
    found = find_candidates(world.core, world.core.job("gang"), world.now_s)

    assert {row.node for row in found} == {"a", "c"}
