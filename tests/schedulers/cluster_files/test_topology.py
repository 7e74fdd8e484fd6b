"""Topologies are ultrametric trees, and every way to say one comes to the same."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.cluster_files.cluster_file import read_cluster
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.topology import COSTS, Topology, Vertex
from tests.schedulers.cluster_files.nvidia_topo_listings import CUBE_MESH, listing
from tests.schedulers.clusters import cluster

LEVELS = tuple(COSTS)


@st.composite
def topologies(draw):
    """Draw trees of any shape over up to 24 devices, in any order, also with equal costs."""
    devices = draw(st.permutations(range(draw(st.integers(1, 24)))))
    steps = draw(st.lists(st.sampled_from((0.0, 0.5, 3.0)), min_size=9, max_size=9))
    costs = dict(zip(LEVELS, np.cumsum(steps).tolist(), strict=True))

    def tree(some, level):
        if level == 0 or draw(st.booleans()):
            return Vertex(f"v{some[0]}", LEVELS[level], tuple(some))
        below, rest = [], list(some)
        while rest:
            count = draw(st.integers(1, len(rest)))
            part, rest = rest[:count], rest[count:]
            below.append(part[0] if len(part) == 1 and level % 2 else tree(part, level - 1))
        return Vertex(f"v{some[0]}", LEVELS[level], tuple(below))

    return Topology(tree(list(devices), len(LEVELS) - 1), costs)


def path(vertex, device):
    """Return the vertices above a device, from the root."""
    for one in vertex.below:
        if one == device:
            return [vertex]
        if isinstance(one, Vertex) and (found := path(one, device)):
            return [vertex, *found]
    return []


@given(topologies())
def test_c1_distances_are_an_ultrametric_and_each_is_of_the_lowest_common_ancestor(tree):
    matrix = tree.distances(range(tree.devices))

    assert (matrix == matrix.T).all()
    assert not matrix.diagonal().any()
    assert (matrix[:, None, :] <= np.maximum(matrix[:, :, None], matrix[None, :, :])).all()
    for a in range(tree.devices):
        for b in range(a):
            common = [v for v, w in zip(path(tree.root, a), path(tree.root, b), strict=False)
                      if v is w]  # fmt: skip
            assert matrix[a, b] == tree.distance(a, b) == tree.costs[common[-1].level]


@given(topologies())
def test_the_devices_below_a_vertex_are_those_whose_ancestor_it_is(tree):
    assert list(tree.below(tree.root.level, tree.root.name)) == list(range(tree.devices))
    for number, vertex in enumerate(tree.vertices):
        below = tree.below(vertex.level, vertex.name)
        assert (np.flatnonzero(tree.ancestor(vertex.level) == number) == below).all()
        assert all(vertex in path(tree.root, device) for device in below)


def test_a_cluster_without_a_topology_has_the_largest_distances():
    found = cluster(2, 1).topology

    assert found.levels == ("node", "cluster")
    assert found.distances([0, 1, 2]).tolist() == [[0, 5, 40], [5, 0, 40], [40, 40, 0]]


@pytest.mark.parametrize(
    ("root", "words"),
    [
        (Vertex("r", "rack", (0, 2)), "device 1 is not in the tree"),
        (Vertex("r", "rack", (0, 1, 1)), "device 1 is twice in the tree"),
        (Vertex("r", "rack", (1,)), "device 0 is not in the tree"),
        (Vertex("r", "rack", (0, Vertex("n", "node", ()))), "node 'n' has no device below it"),
        (Vertex("r", "rack", (0,), inc_slots=-1), "rack 'r': inc_slots=-1, must be >= 0"),
        (
            Vertex("r", "room", (0,)),
            "level 'room', which has no cost; levels with",
        ),
        (
            Vertex("r", "node", (0, Vertex("n", "rack", (1,)))),
            "rack 'n' is below node 'r'; the order of levels, from the innermost, is nvlink",
        ),
        (
            Vertex("r", "rack", (Vertex("n", "node", (0,)), Vertex("n", "node", (1,)))),
            "two vertices of level 'node' are called 'n'",
        ),
    ],
)
def test_an_invalid_tree_is_reported_in_one_line(root, words):
    with pytest.raises(ConfigError, match=words) as error:
        Topology(root)
    assert "\n" not in str(error.value)


def test_costs_are_finite_and_never_fall_outwards():
    for cost, words in ((-1, ">= 0, the cost of a device"), (float("nan"), "cost of node is nan")):
        with pytest.raises(ConfigError, match=words):
            Topology(Vertex("n", "node", (0,)), {"node": cost})
    with pytest.raises(ConfigError, match=r"cost of rack is 4, must be a finite .* >= 5, .* node"):
        Topology(Vertex("n", "node", (0,)), {"node": 5.0, "rack": 4.0})


def test_a_topology_must_match_its_cluster():
    with pytest.raises(ConfigError, match="the topology has 2 devices and the cluster 3"):
        Cluster(cluster(3).nodes, cluster(2).topology)
    with pytest.raises(ValueError, match="no vertex is of level 'rack'; there are node, cluster"):
        cluster(1).topology.ancestor("rack")
    with pytest.raises(ValueError, match="no node is called 'n1'"):
        cluster(1).topology.below("node", "n1")


FILE = """
nodes:
  - {name: "n[0-3]", devices: 4, kind: v100, within: nvlink-pairs}
  - {name: "m[08-10]", devices: 2, kind: h100, within: nvswitch}
  - {name: p, devices: 2, kind: a100, within: pcie}
topology:
  groups:
    rack: {r0: "n[0,2]", r1: "n[1,3]", r2: "m[08-10],p"}
    pod: {p0: "r[0-1]", p1: r2}
  costs: {rack: 12, pod: 30}
"""


def read(tmp_path, text):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_cluster(path)


def test_a_file_describes_nodes_and_their_groups(tmp_path):
    found = read(tmp_path, FILE)
    tree = found.topology

    assert [node.name for node in found.nodes] == [
        "n0", "n1", "n2", "n3", "m08", "m09", "m10", "p"
    ]  # fmt: skip
    assert tree.levels == ("nvlink", "phb", "node", "rack", "pod", "cluster")
    assert list(tree.below("rack", "r1")) == [4, 5, 6, 7, 12, 13, 14, 15]
    # From n0/0 to: itself, its pair, the other pair, n1 in another rack, n2 in its own, m08.
    assert tree.distance(0, [0, 1, 2, 4, 8, 16]).tolist() == [0, 1, 5, 30, 12, 40]
    assert tree.distance([16, 22, 16], [17, 23, 18]).tolist() == [1, 4, 12]


WIRES = ("nvlink", "pix", "pxb", "phb", "numa", "node", "rack", "spine", "cluster")


def chain(costs):
    """Return a tree in which device i + 1 meets all earlier devices at the i-th level."""
    vertex = Vertex("v0", WIRES[0], (0, 1))
    for i, level in enumerate(WIRES[1:], 1):
        vertex = Vertex("cluster" if level == "cluster" else f"v{i}", level, (vertex, i + 1))
    return Topology(vertex, costs)


def test_c3_levels_have_the_required_costs_unless_a_table_overrides_them():
    # Same device, NVLink, PIX, PXB, PHB, NODE, SYS, rack, spine, beyond.
    found = chain(COSTS).distance(0, range(10))
    assert found.tolist() == [0, 1, 2, 3, 4, 4, 5, 10, 20, 40]
    own = dict(zip(WIRES, (1, 1, 2, 3, 5, 8, 13, 21, 34), strict=True))
    assert chain(own).distance(0, range(10)).tolist() == [0, *own.values()]


def test_a_thousand_nodes_need_few_lines_and_little_time(tmp_path):
    found = read(
        tmp_path,
        'nodes: [{name: "n[0000-1023]", devices: 8, kind: h200, within: nvswitch}]\n'
        "topology: {groups: {rack: 32, spine: 4}}\n",
    )
    tree = found.topology
    began_s = time.perf_counter()
    gang = tree.distances(np.arange(0, 8192, 32))
    ring = tree.distance(np.arange(8192), np.roll(np.arange(8192), -1))

    assert time.perf_counter() - began_s < 1.0
    assert found.devices == len(ring) == 8192
    assert np.unique(gang).tolist() == [0, 10, 20, 40]
    assert [int((ring == cost).sum()) for cost in (1, 10, 20, 40)] == [7168, 992, 24, 8]
    assert list(tree.below("spine", "spine7")) == list(range(7168, 8192))


def test_the_guides_example_is_right(tmp_path):
    guide = (Path(__file__).parents[3] / "docs/schedulers/topology.md").read_text()
    text, code = (guide.split(f"```{kind}\n")[1].split("```")[0] for kind in ("yaml", "python"))
    (tmp_path / "v00.topo.txt").write_text(listing(CUBE_MESH))
    read(tmp_path, text)
    lines = [line.replace('"cluster.yaml"', "path") for line in code.splitlines()]
    known = {
        "read_cluster": read_cluster,
        "Path": Path,
        "np": np,
        "path": tmp_path / "cluster.yaml",
    }
    exec(lines[0], known)

    assert eval(lines[1], known) == 12.0
    assert eval(lines[2], known).tolist() == [
        [0, 1, 12, 12], [1, 0, 12, 12], [12, 12, 0, 1], [12, 12, 1, 0]
    ]  # fmt: skip
    exec(lines[3], known)
    assert eval(lines[4], known).tolist() == [1, 12, 1, 12]
    assert len(eval(lines[5], known)) == 8 * 544 + 1
    assert list(eval(lines[6], known)) == list(range(2048))


def test_i10_a_file_gives_slots_to_switches(tmp_path):
    tree = read(tmp_path, FILE + '  inc: {rack: {"r[0-1]": 2, r2: 0}, pod: 1}\n').topology

    slots = {(v.level, v.name): v.inc_slots for v in tree.vertices if v.inc_slots}
    assert slots == {("rack", "r0"): 2, ("rack", "r1"): 2, ("pod", "p0"): 1, ("pod", "p1"): 1}
    without = read(tmp_path, FILE).topology
    assert not any(vertex.inc_slots for vertex in without.vertices)
    assert (tree.distances(range(24)) == without.distances(range(24))).all()
    assert read(tmp_path, NODES + "topology: {inc: {cluster: 3}}").topology.root.inc_slots == 3


NODES = 'nodes: [{name: "n[0-3]", devices: 4, kind: v100}]\n'
RACKS = NODES + 'topology: {groups: {rack: {r: "n[0-1]", s: "n[2-3]"}}, inc: '


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NODES + "topolgy: {}", "topolgy is not known; did you mean 'topology'"),
        (NODES + "topology: [rack]", "topology is not a mapping"),
        (NODES + "topology: {cost: {}}", "topology.cost is not known; did you mean 'costs'"),
        (NODES + "topology: {costs: [1]}", "topology.costs is not a mapping"),
        (NODES + "topology: {costs: {rack: far}}", "costs.rack='far' is not a number"),
        (NODES + "topology: {costs: {rack: 30}}", "costs: cost of spine is 20, must .* >= 30"),
        (NODES + "topology: {costs: {rak: 12}}", "costs.rak: no group has .* did you mean 'rack'"),
        (NODES + "topology: {groups: {rak: 2}}", "groups.rak is not known; did you mean 'rack'"),
        (NODES + "topology: {groups: {rack: 0}}", "groups.rack is not a mapping; write"),
        (NODES + "topology: {groups: {rack: {r: 1}}}", "rack.r=1 is not text"),
        (NODES + 'topology: {groups: {rack: {r: "n[0-3"}}}', "rack.r: 'n.0-3' is not a hostlist"),
        (
            NODES + 'topology: {groups: {rack: {r: "n[0-4]"}}}',
            "node n4 is not known; known are n0, n1",
        ),
        (NODES + 'topology: {groups: {rack: {r: "n[0-2]"}}}', "rack: node 'n3' is in no group"),
        (
            NODES + 'topology: {groups: {rack: {r: "n[0-3]", s: n1}}}',
            "rack.s: node 'n1' is in two groups",
        ),
        (NODES + "topology: {groups: {spine: 2, rack: 2}}", "spine .* is below rack 'rack0'"),
        (
            NODES + "topology: {groups: {pix: 2}}",
            "node 'n0' is below pix 'pix0'; the order",
        ),
        (RACKS + "[1]}", "topology.inc is not a mapping"),
        (RACKS + "{rak: 1}}", "topology.inc.rak is not known; did you mean 'rack'"),
        (RACKS + "{node: 1}}", "topology.inc.node is not known; known are rack, cluster"),
        (RACKS + "{rack: -1}}", "topology.inc.rack=-1, must be from 0 to 256"),
        (RACKS + "{rack: 257}}", "topology.inc.rack=257, must be from 0 to 256"),
        (RACKS + "{rack: 1.5}}", "topology.inc.rack=1.5 is not an integer"),
        (RACKS + "{rack: true}}", "topology.inc.rack=True is not an integer"),
        (RACKS + "{rack: {r: -2}}}", "topology.inc.rack.r=-2, must be from 0"),
        (RACKS + "{rack: {r: .inf}}}", "topology.inc.rack.r=inf is not an integer"),
        (RACKS + "{rack: {t: 1}}}", "topology.inc.rack: t is not known; known are r, s"),
        (RACKS + '{rack: {"r,s": 1, s: 2}}}', "topology.inc.rack.s: 's' has slots twice"),
        (RACKS + '{rack: {"r,r": 1}}}', "topology.inc.rack.r,r: 'r' has slots twice"),
        (RACKS + '{rack: {"r[": 1}}}', "topology.inc.rack.*is not a hostlist"),
        ("nodes: [{name: a, devices: 3, kind: v100, within: nvlink-pairs}]", "for 3 devices"),
        (
            "nodes: [{name: a, devices: 3, kind: v100, within: nvswich}]",
            r"'nvswich' is neither a known layout .* listing \(.*No such file.*\); "
            "did you mean 'nvswitch'",
        ),
        ('nodes: [{name: "n[3-1]", devices: 1, kind: v100}]', r"nodes\[0\].name: .*decreases"),
        ('nodes: [{name: "n[0-99999999999]", devices: 1, kind: v100}]', "more than 65,536"),
        ('nodes: [{name: "n[000-999][000-999]", devices: 1, kind: v100}]', "more than 65,536"),
        ('nodes: [{name: "n[0-2],n1", devices: 1, kind: v100}]', "two nodes are called 'n1'"),
        ('nodes: [{name: "a, ,b", devices: 1, kind: v100}]', "not a hostlist at char.* 3"),
        ('nodes: [{name: "", devices: 1, kind: v100}]', "name is empty"),
        ('nodes: [{name: "n[a-b]", devices: 1, kind: v100}]', "'a-b' is not a number range"),
    ],
)
def test_an_invalid_topology_is_reported_in_one_line_with_its_place(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'cluster.yaml'}: ")
    assert "\n" not in str(error.value)
