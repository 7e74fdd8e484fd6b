"""Switches that aggregate for a job: where the paths from its nodes meet."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.cluster_files.cluster_file import read_cluster
from presage.schedulers.core.capacity.job_switches import Switch, job_switches, switches
from presage.schedulers.core.topology import Topology, Vertex
from tests.schedulers.cluster_files.nvidia_topo_listings import CUBE_MESH, listing


def tree(rack=1, spine=1, cluster=1):
    """Return two spines of two racks of two nodes of two devices: n0 to n7."""
    nodes = [Vertex(f"n{i}", "node", (2 * i, 2 * i + 1)) for i in range(8)]
    racks = [Vertex(f"r{i}", "rack", tuple(nodes[2 * i : 2 * i + 2]), rack) for i in range(4)]
    spines = [Vertex(f"s{i}", "spine", tuple(racks[2 * i : 2 * i + 2]), spine) for i in range(2)]
    return Topology(Vertex("cluster", "cluster", tuple(spines), cluster))


def names(topology, *nodes):
    return [switch.name for switch in job_switches(topology, [f"n{i}" for i in nodes])]


def test_i10_job_uses_the_switches_at_which_its_paths_meet():
    assert names(tree(), 0, 1) == ["rack/r0"]
    assert names(tree(), 0, 2) == ["spine/s0"]  # each rack passes one node's data on
    assert names(tree(), 0, 1, 2) == ["rack/r0", "spine/s0"]
    assert names(tree(), 0, 1, 4) == ["rack/r0", "cluster/cluster"]
    assert names(tree(), *range(8)) == [
        "rack/r0", "rack/r1", "spine/s0", "rack/r2", "rack/r3", "spine/s1", "cluster/cluster"
    ]  # fmt: skip


def test_i10_switches_without_slots_pass_data_on():
    assert names(tree(rack=0), 0, 1, 2, 3) == ["spine/s0"]
    assert names(tree(spine=0), 0, 1, 2, 3, 4) == ["rack/r0", "rack/r1", "cluster/cluster"]


def test_i10_job_whose_common_ancestor_has_no_slots_uses_no_switch():
    assert names(tree(rack=0), 0, 1) == []
    assert names(tree(spine=0), 0, 1, 2) == []
    assert names(tree(cluster=0), *range(8)) == []


def test_job_on_one_node_uses_no_switch():
    assert names(tree(), 5) == names(tree(), 5, 5) == names(tree()) == []


def test_slots_are_those_of_each_switch():
    assert job_switches(tree(rack=3, spine=2), ["n0", "n1", "n2"]) == (
        Switch("rack/r0", 3),
        Switch("spine/s0", 2),
    )


def test_unknown_node_is_an_error():
    with pytest.raises(ValueError, match="no node is called 'n9'"):
        job_switches(tree(), ["n0", "n9"])


def test_all_switches_of_a_topology():
    found = switches(tree(spine=0))
    assert {s.name for s in found} == {"cluster/cluster", *(f"rack/r{i}" for i in range(4))}


@given(nodes=st.sets(st.integers(0, 7)), slots=st.tuples(*[st.integers(0, 2)] * 3))
def test_all_or_none_in_every_topology_of_three_levels(nodes, slots):
    topology = tree(*slots)
    found = job_switches(topology, [f"n{i}" for i in nodes])

    assert all(switch in switches(topology) for switch in found)
    if found:  # the last one is above all nodes of the job
        level, name = found[-1].name.split("/")
        below = set(topology.below(level, name).tolist())
        assert below >= {2 * i for i in nodes}
    if len(nodes) > 1 and min(slots):
        assert found


def test_the_guides_example_is_right(tmp_path):
    guide = (Path(__file__).parents[3] / "docs/schedulers/topology.md").read_text()
    (tmp_path / "v00.topo.txt").write_text(listing(CUBE_MESH))
    path = tmp_path / "cluster.yaml"
    path.write_text(guide.split("```yaml\n")[1].split("```")[0])
    example = guide.split("```pycon\n")[1].split("```")[0]
    known = {"tree": read_cluster(path).topology}
    test = doctest.DocTestParser().get_doctest(example, known, "topology.md", None, 0)

    assert doctest.DocTestRunner().run(test) == (0, 3)
