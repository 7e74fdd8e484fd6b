"""Why a job waits, and the devices that are best for it."""

from __future__ import annotations

import pytest

from presage.schedulers.controller.explain import MOST_CANDIDATES, candidates_of, sentence_of
from presage.schedulers.controller.records import Placed
from presage.schedulers.policies.bin_packing import BinPacking
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.packing import Packing
from presage.schedulers.policies.sharing import Sharing
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.controller.test_core import GIB, K80, V100, World, task


def why(world, name):
    return sentence_of(world.core, world.core.book.jobs[name], 0, world.now_s)


def verdicts(world, name):
    rows = candidates_of(world.core, world.core.book.jobs[name], world.now_s)
    return {(row.node, row.device): row.verdict for row in rows}


def test_a_gang_fits_only_where_one_node_has_all_its_devices():
    world = World()
    for node in "ab":
        world.submit(f"on-{node}")
        world.report(node, [V100] * 2, agent_id=node)
        world.write([Placed(f"on-{node}", 1, node, [[0, 1000, 16 * GIB]], [], 0.0)])
    world.core.undo()
    world.submit("gang", gpus=2)

    assert verdicts(world, "gang") == {
        ("a", 1): "fits, but its node has 1 of 2",
        ("b", 1): "fits, but its node has 1 of 2",
        ("a", 0): "too little compute left",
        ("b", 0): "too little compute left",
    }
    assert why(world, "gang") == (
        "it waits: no node has 2 devices that have left what it needs, as a best-effort job"
    )


def test_a_node_with_all_of_a_gangs_devices_is_found_among_many_with_too_few():
    world = World()
    for number in range(MOST_CANDIDATES + 1):
        world.report(f"n{number:02d}", [V100], agent_id=str(number))
    world.report("wide", [V100] * 2, agent_id="wide")
    world.submit("gang", gpus=2)

    found = verdicts(world, "gang")
    assert len(found) == MOST_CANDIDATES
    assert list(found)[:2] == [("wide", 0), ("wide", 1)]
    assert why(world, "gang") == "it waits: others go before it"


def test_devices_of_other_kinds_take_nobodys_place_among_the_best():
    world = World()
    for number in range(MOST_CANDIDATES + 1):
        world.report(f"n{number:02d}", [V100], agent_id=str(number))
    world.report("old", [K80], agent_id="old")
    world.submit("job", model="300", kinds=("k80",))

    assert verdicts(world, "job") == {("old", 0): "fits"}
    assert why(world, "job") == "it waits: others go before it"


def test_a_job_that_would_fit_waits_for_those_before_it():
    world = World()
    world.submit("holds")
    world.report("a", [V100] * 2)
    world.decide()
    world.submit("gang", gpus=2)
    world.submit("small", model="300")
    world.decide()  # the node runs dry for the gang

    assert verdicts(world, "small")["a", 1] == "fits"
    assert why(world, "small") == "it waits: others go before it"


def test_where_a_job_is_and_with_how_much_is_as_its_agent_says():
    world = World()
    world.report("a", [V100] * 2)
    world.submit("job", model="300", latency_sensitive=True)
    world.decide()
    assert why(world, "job") == "it was given to node a with 30 % of device 0, attempt 1"

    moved = task("job", late=True, why="given 90 % of the device")
    moved.grants.append(pb.Grant(device=1, compute_milli=900, memory_bytes=4 * GIB))
    world.report("a", [V100] * 2, tasks=[moved])
    assert why(world, "job") == (
        "it runs on node a with 90 % of device 1, attempt 1; it will be late: "
        "given 90 % of the device"
    )
    assert verdicts(world, "job") == {("a", 1): "it is here", ("a", 0): "fits"}
    moved.phase, moved.late, moved.why = pb.TASK_PAUSED, False, "paused: busier than foretold"
    world.report("a", [V100] * 2, tasks=[moved])
    assert why(world, "job").startswith("it is paused on node a with 90 % of device 1, attempt 1: ")


@pytest.mark.parametrize(
    ("policy", "needs"), [(Fifo(), 1000), (BinPacking(), 500), (Packing(), 300), (Sharing(), 300)]
)
def test_what_a_job_needs_is_what_the_policy_goes_by(policy, needs):
    world = World(policy)
    world.submit("job", model="300", compute_milli=500)
    world.report("a", [V100])

    (row,) = candidates_of(world.core, world.core.book.jobs["job"], world.now_s)
    assert row.need_compute_milli == needs
