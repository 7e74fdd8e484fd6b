"""Factors on step times of gangs that share the switches of a cluster."""

from __future__ import annotations

import pytest

from presage.collectives.core.costs import Link, inc_s, ring_s
from presage.collectives.simulation.cluster_sharing import ClusterSharing, gang_job
from presage.collectives.simulation.phased_job import Way
from presage.schedulers.core.topology import Topology, Vertex
from presage.schedulers.simulator.ground_truth.switch_sharing import PlacedGang

LINK = Link(5e-6, 1.25e9)  # 10 Gbit/s
MB = 1_000_000


def topology(slots=1, root_slots=0):
    """Return two racks of four nodes with one device each."""
    nodes = [Vertex(f"n{i}", "node", (i,)) for i in range(8)]
    racks = [Vertex(f"r{r}", "rack", tuple(nodes[4 * r : 4 * r + 4]), slots) for r in range(2)]
    return Topology(Vertex("cluster", "cluster", tuple(racks), root_slots))


def gang(name, nodes, *, step_s=1.0, gradient_bytes=500 * MB):
    return PlacedGang(name, tuple(f"n{node}" for node in nodes), step_s, gradient_bytes)


def test_a_gang_with_the_switch_for_itself_gains_what_the_costs_say():
    found = ClusterSharing(topology(), LINK, "own-switch").factors([gang("a", range(4))])
    least = 1 - (ring_s(4, 500 * MB, LINK) - inc_s(4, 500 * MB, LINK))

    assert least <= found["a"] < 0.95


def test_the_arbiter_gives_a_single_gang_the_switch():
    gangs = [gang("a", range(4))]
    own = ClusterSharing(topology(), LINK, "own-switch").factors(gangs)
    shared = ClusterSharing(topology(), LINK).factors(gangs)

    assert shared["a"] == pytest.approx(own["a"], abs=0.02)


def test_gangs_of_one_switch_share_it_and_those_of_others_do_not():
    big = [
        Vertex("r0", "rack", tuple(Vertex(f"n{i}", "node", (i,)) for i in range(8)), 1),
        Vertex("r1", "rack", tuple(Vertex(f"n{i}", "node", (i,)) for i in range(8, 12)), 1),
    ]
    sharing = ClusterSharing(Topology(Vertex("cluster", "cluster", tuple(big))), LINK, "first-come")
    alone = sharing.factors([gang("a", range(4))])
    found = sharing.factors(
        [gang("a", range(4), gradient_bytes=900 * MB)]
        + [gang(f"b{i}", range(4, 8), gradient_bytes=900 * MB) for i in range(2)]
        + [gang("c", range(8, 12))]
    )

    assert found["c"] == alone["a"]
    assert all(value <= 1.001 for value in found.values())
    assert (
        max(found["a"], found["b0"], found["b1"])
        > sharing.factors([gang("a", range(4), gradient_bytes=900 * MB)])["a"]
    )


@pytest.mark.parametrize(
    "one",
    [
        gang("two racks", (0, 4)),  # their common ancestor has no slots
        gang("unknown step", range(4), step_s=0.0),
        gang("unknown gradients", range(4), gradient_bytes=0),
    ],
)
def test_gangs_without_a_switch_or_known_allreduces_have_no_factor(one):
    assert ClusterSharing(topology(), LINK).factors([one]) == {}


def test_a_gang_over_racks_uses_the_switches_of_the_tree():
    sharing = ClusterSharing(topology(root_slots=1), LINK, "own-switch")

    assert sharing.factors([gang("wide", range(8))])["wide"] < 0.95


@pytest.mark.parametrize("step_s", [0.1, 1.0, 30.0])
def test_the_phases_of_a_gang_take_its_step_by_ring(step_s):
    job = gang_job("a", (step_s, 500 * MB, 4, ("s",)), LINK, 3)

    assert job.solo_s(Way.RING) == pytest.approx(step_s, rel=1e-3)


def test_an_unknown_rule_is_rejected():
    with pytest.raises(ValueError, match="unknown rule"):
        ClusterSharing(topology(), LINK, "last-come")
