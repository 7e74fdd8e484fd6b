"""Tests that the controller uses only the contract of policies."""

from __future__ import annotations

import pytest

from presage.schedulers.core.action import Start
from presage.schedulers.core.policy import Policy
from presage.schedulers.live.controller.explanations.explain import find_candidates
from presage.schedulers.policies.bin_packing import BinPacking
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.packing.packing_policy import Packing
from presage.schedulers.policies.sharing.sharing_policy import Sharing
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.schedulers.live.controller.test_core import K80, V100, FakeForecaster, World
from tests.schedulers.policies.test_policy_plugins import Wrapped

JOBS = {"0": "300", "1": "600", "2": "400", "3": "100"}


def live_allocations(policy):
    """Return what the controller allocates to jobs that come one after the other on one node."""
    world = World(policy)
    world.report("n0", [V100] * 2)
    for name, model in JOBS.items():
        world.submit(name, model=model)
        world.decide()
    return {
        task.job.job_id: [(g.device, g.compute_milli, g.memory_bytes) for g in task.allocations]
        for task in world.core.commands("n0").tasks
    }


def simulated_allocations(policy):
    jobs = [job(name, float(name), model=model) for name, model in JOBS.items()]
    done = simulated(
        cluster(2), policy, jobs, dict.fromkeys(JOBS, 1e4), forecaster=FakeForecaster()
    )
    entries = [one for one in done.log.entries if one[1] == "start" and one[0] < 10.0]
    return {job_id: [tuple(one) for one in held] for _, _, job_id, held in entries}


@pytest.mark.parametrize("make", [Packing, lambda: Wrapped(Packing())])
def test_a_wrapped_packing_allocates_live_what_it_does_in_the_simulator(make):
    live, there = live_allocations(make()), simulated_allocations(make())
    assert live == there
    assert live["0"] == [(0, 300, 4 * GIB)]
    assert live == live_allocations(Packing())


@pytest.mark.parametrize(
    ("policy", "needs"),
    [(Fifo(), (1000, 16 * GIB)), (Packing(overcommit=2.0), (150, 4 * GIB)), (Sharing(), None)],
)
def test_explanations_of_a_wrapped_policy_are_those_of_the_policy(policy, needs):
    def explained(policy):
        world = World(policy)
        world.submit("job", model="300", compute_milli=500)
        world.report("a", [V100])
        (row,) = find_candidates(world.core, world.core.state.jobs["job"], world.now_s)
        return row.required_compute_milli, row.required_memory_bytes

    assert explained(Wrapped(policy)) == explained(policy)
    if needs is not None:
        assert explained(policy) == needs


class Spreads(Policy):
    """Policy that places a gang on several nodes, which a live cluster does not support."""

    def decide(self, state, forecasts, rng):
        return [
            Start(
                one.job_id, state.cluster.full_allocations[:: 2 if one.gpus > 1 else 1][: one.gpus]
            )
            for one in state.pending
        ]


def test_a_start_on_several_nodes_is_rejected_and_reported():
    world = World(Spreads())
    for name in ("a", "b"):
        world.report(name, [V100] * 2, agent_id=name)
    world.submit("gang", gpus=2)
    assert world.decide() == []
    assert world.core.problem.startswith("a start over several nodes was refused")


def test_bin_packing_keeps_a_gang_on_one_node_of_a_live_cluster():
    world = World(BinPacking().controller_policy())
    world.report("a", [V100] * 2, agent_id="a")
    world.report("b", [K80] * 2, agent_id="b")
    world.submit("one", kinds=("v100",))
    world.submit("other", kinds=("k80",))
    world.decide()
    assert (world.nodes_with("one"), world.nodes_with("other")) == (["a"], ["b"])
    world.submit("pair", gpus=2)
    assert world.decide() == []  # each node has one idle device
    assert world.core.problem == ""
