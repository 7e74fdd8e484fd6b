"""Gangs placed by the free slots of switches with in-network computing (I9, I10)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.topology import Topology, Vertex
from presage.schedulers.policies.gang.gang_policy import Gang
from presage.schedulers.policies.gang.switch_sharing import SwitchSharing
from tests.schedulers.clusters import GIB, job, simulated
from tests.schedulers.policies.test_sharing import starts_of

NODES = 6  # of a rack


def racks(*slots, root=0):
    """Return a cluster of racks with these slots, each of six nodes of one device."""
    nodes = [Vertex(f"n{i}", "node", (i,)) for i in range(NODES * len(slots))]
    below = [
        Vertex(f"r{i}", "rack", tuple(nodes[NODES * i :][:NODES]), count)
        for i, count in enumerate(slots)
    ]
    return Cluster(
        tuple(Node(node.name, 1, "v100", 16 * GIB) for node in nodes),
        Topology(Vertex("all", "cluster", tuple(below), root)),
    )


def racks_used(cluster, jobs, policy):
    """Return the rack of each gang of one rack."""
    done = simulated(cluster, policy, jobs, {one.job_id: 100.0 for one in jobs})
    return {
        name: devices[0] // NODES
        for name, (_, devices) in starts_of(done).items()
        if len({device // NODES for device in devices}) == 1
    }


def factor(cluster, devices, gangs=()):
    held = {
        f"g{i}": [Allocation(device, 1000, GIB) for device in one] for i, one in enumerate(gangs)
    }
    return SwitchSharing(cluster, held).cost_factor(np.array(devices))


def test_i9_a_switch_takes_n_over_2_n_minus_1_of_the_time_of_a_ring():
    assert factor(racks(1), [0, 1]) == 1.0
    assert factor(racks(1), [0, 1, 2]) == pytest.approx(3 / 4)
    assert factor(racks(1), range(6)) == pytest.approx(6 / 10)
    assert factor(racks(0), range(6)) == 1.0
    assert factor(racks(1, 1), [0, 1, 6]) == 1.0  # the ancestor of both racks has no slots


def test_slots_are_shared_in_time_with_the_gangs_that_use_them():
    other = [[3, 4]]
    assert factor(racks(1), [0, 1, 2], other) == pytest.approx(1 - 1 / 2 * 1 / 4)
    assert factor(racks(2), [0, 1, 2], other) == pytest.approx(3 / 4)
    assert factor(racks(1), [0, 1, 2], [[3, 4], [4, 5]]) == pytest.approx(1 - 1 / 3 * 1 / 4)
    assert factor(racks(1, 1, root=1), [6, 7, 8], [[0, 6]]) == pytest.approx(3 / 4)


def test_a_gang_prefers_a_rack_whose_switch_has_slots():
    one = job("a", gpus=4)
    assert racks_used(racks(0, 1), [one], Gang()) == {"a": 1}
    assert racks_used(racks(0, 0), [one], Gang()) == {"a": 0}
    assert racks_used(racks(0, 1), [one], Gang(beta=0.0)) == {"a": 0}


def test_a_gang_prefers_a_switch_that_no_other_gang_uses():
    jobs = [job("a", gpus=3), job("b", gpus=3)]
    assert racks_used(racks(1, 1), jobs, Gang()) == {"a": 0, "b": 1}
    assert racks_used(racks(2, 1), jobs, Gang()) == {"a": 0, "b": 0}


def test_one_decision_counts_the_gangs_that_it_has_placed():
    jobs = [job(name, gpus=3) for name in "abcd"]
    # For the last one half of a slot is better than the rack without any.
    assert racks_used(racks(1, 1, 1, 0), jobs, Gang()) == {"a": 0, "b": 1, "c": 2, "d": 0}


@given(
    slots=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    root=st.integers(0, 1),
    devices=st.sets(st.integers(0, 2 * NODES), min_size=1, max_size=8),
    gangs=st.lists(st.sets(st.integers(0, NODES - 1), min_size=2, max_size=4), max_size=3),
)
def test_the_factor_is_above_a_half_and_more_gangs_do_not_lower_it(slots, root, devices, gangs):
    cluster = racks(*slots, root=root)
    devices = sorted(device for device in devices if device < cluster.devices) or [0]
    found = factor(cluster, devices, gangs)

    assert 0.5 < found <= 1.0
    assert found >= factor(cluster, devices, gangs[1:]) - 1e-12
