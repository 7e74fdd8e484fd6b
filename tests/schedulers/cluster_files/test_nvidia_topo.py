"""Listings of ``nvidia-smi topo -m`` become trees, exactly where the links are those of a tree."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.cluster_files.cluster_file import read_cluster
from presage.schedulers.cluster_files.nvidia_topo import build_node_tree, read_links
from presage.schedulers.core.action import Start
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.core.topology import COSTS, Topology, Vertex
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.gang.gang_policy import Gang
from tests.schedulers.cluster_files.nvidia_topo_listings import (
    CUBE_MESH,
    NVSWITCH,
    PAIRS,
    PCIE,
    listing,
)
from tests.schedulers.clusters import job

KINDS = ("NV4", "PIX", "PXB", "PHB", "NODE", "SYS")
LEVELS = ("nvlink", "pix", "pxb", "phb", "numa", "node")


def costs_of(matrix):
    """Return the cost of each link of a matrix."""
    cost = {kind: COSTS[level] for kind, level in zip(KINDS, LEVELS, strict=True)} | {"X": 0.0}
    return np.array([[cost["NV4" if kind[:2] == "NV" else kind] for kind in row] for row in matrix])


def tree_of(text):
    return Topology(build_node_tree(read_links(text), "n0", 0))


@pytest.mark.parametrize("cards", [0, 3])
@pytest.mark.parametrize(
    ("matrix", "shape"),
    [
        (NVSWITCH, (("n0.nvlink0", range(8)),)),
        (PAIRS, (("n0.nvlink0", [0, 1]), ("n0.nvlink2", [2, 3]))),
        (
            PCIE,
            (
                ("n0.pix0", [0, 1]), ("n0.pxb2", [2, 3]), ("n0.phb0", range(4)),
                ("n0.pix4", [4, 5]), ("n0.pix6", [6, 7]), ("n0.numa4", range(4, 8)),
            ),
        ),
        ([["X"]], ()),
    ],
    ids=["NVSwitch", "NVLink pairs", "PCIe", "one GPU"],
)  # fmt: skip
def test_a_listing_of_a_tree_is_that_tree(matrix, shape, cards):
    tree = tree_of(listing(matrix, cards))

    assert (tree.distances(range(len(matrix))) == costs_of(matrix)).all()
    levels = {vertex.name: vertex.level for vertex in tree.vertices if vertex.name != "n0"}
    assert levels.keys() == {name for name, _ in shape}
    for name, devices in shape:
        assert list(tree.below(levels[name], name)) == list(devices)


def test_a_cube_mesh_is_two_quads_and_no_link_is_underestimated():
    tree = tree_of(listing(CUBE_MESH, 4))
    found, links = tree.distances(range(8)), costs_of(CUBE_MESH)

    assert [list(tree.below("nvlink", f"n0.nvlink{i}")) for i in (0, 4)] == [
        [0, 1, 2, 3], [4, 5, 6, 7]
    ]  # fmt: skip
    assert (found >= links).all()
    dearer = [(a, b) for a, b in np.argwhere(found > links).tolist() if a < b]
    assert dearer == [(0, 4), (1, 5), (2, 6), (3, 7)]  # NVLinks from one quad to the other


@st.composite
def ranks(draw, tree):
    """Draw a matrix of link kinds between 1 to 8 GPUs: of a random tree, or any symmetric one."""
    count = draw(st.integers(1, 8))
    drawn = np.array(draw(st.lists(st.integers(0, 5), min_size=64, max_size=64))).reshape(8, 8)
    drawn = np.maximum(drawn, drawn.T)[:count, :count]
    if tree:  # the least of the largest link on any path is an ultrametric
        for k in range(count):
            drawn = np.minimum(drawn, np.maximum(drawn[:, [k]], drawn[[k], :]))
    np.fill_diagonal(drawn, -1)
    return drawn


def written(drawn):
    return [["X" if level < 0 else KINDS[level] for level in row] for row in drawn.tolist()]


@settings(deadline=None)
@given(ranks(tree=True), st.integers(0, 2))
def test_a_written_tree_is_read_back(drawn, cards):
    text = listing(written(drawn), cards)

    assert (read_links(text) == drawn).all()
    assert (tree_of(text).distances(range(len(drawn))) == costs_of(written(drawn))).all()


@settings(deadline=None)
@given(ranks(tree=False))
def test_a_tree_never_underestimates_a_link_and_is_tight_for_each_vertex(drawn):
    tree, links = Topology(build_node_tree(drawn, "n0", 0)), costs_of(written(drawn))

    assert (tree.distances(range(len(drawn))) >= links).all()
    for vertex in tree.vertices:
        below = tree.below(vertex.level, vertex.name)
        within = links[np.ix_(below, below)].max()
        assert vertex is tree.root or within == COSTS[vertex.level]


def test_text_around_a_listing_and_its_column_widths_are_ignored():
    pasted = "$ nvidia-smi topo -m\n" + listing(PCIE, 2).expandtabs(9).replace("\x1b[4m", "")
    old = (
        "\tGPU0\tGPU1\tmlx4_0\tCPU Affinity\nGPU0\t X \tSOC\tPHB\t0-9\nGPU1\tSOC\t X \tSOC\t10-19\n"
    )

    assert (read_links(pasted) == read_links(listing(PCIE))).all()
    assert read_links(old).tolist() == [[-1, 5], [5, -1]]


PAIR = "\tGPU0\tGPU1\tCPU Affinity\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line GPU0 GPU1 ... heads a matrix; save the complete"),
        ("Failed to initialize NVML: Driver/library version mismatch", "no line GPU0 GPU1"),
        ("GPU0\t X \tPIX\nGPU1\tPIX\t X \n", "line 1: GPU0 comes before the header"),
        (PAIR + "GPU0\t X \tPIX\t0-9\nGPU1\tPHB\t X \t0-9\n", "GPU0 to GPU1 is another kind"),
        (PAIR + "GPU0\t X \tFOO\t0-9\n", "line 2: 'FOO' from GPU0 to GPU1 is not a kind of link"),
        (PAIR + "GPU0\tPIX\tPIX\t0-9\n", "'PIX' from GPU0 to GPU0 is not a kind of link"),
        (PAIR + "GPU0\t X \t X \t0-9\n", "'X' from GPU0 to GPU1 is not a kind of link"),
        (PAIR + "GPU0\t X \n", "line 2: 1 entries for 2 columns"),
        (PAIR + "GPU0\t X \tPIX\t0-9\n", "GPU1 has no line"),
        (PAIR + "GPU0\t X \tPIX\nGPU1\tPIX\t X \nGPU2\tPIX\t X \n", "GPU2 has no column"),
        (PAIR + "GPU0\t X \tPIX\nGPU0\t X \tPIX\n", "line 3: a second line of GPU0"),
    ],
)
def test_an_invalid_listing_is_reported_in_one_line_with_the_line_number(text, words):
    with pytest.raises(ConfigError, match=words) as error:
        read_links(text)
    assert "\n" not in str(error.value)


def test_nodes_of_a_cluster_file_share_a_listing(tmp_path):
    path = tmp_path / "cluster.yaml"
    (tmp_path / "dgx1.txt").write_text(listing(CUBE_MESH, 4))
    path.write_text(
        'nodes: [{name: "n[0-1]", devices: 8, kind: v100, within: dgx1.txt}]\n'
        "topology: {groups: {rack: 2}}\n"
    )
    tree = read_cluster(path).topology

    assert isinstance(tree.root.below[0], Vertex)
    assert list(tree.below("nvlink", "n1.nvlink4")) == [12, 13, 14, 15]
    assert tree.distance(0, [3, 4, 8, 15]).tolist() == [1, 5, 10, 10]
    path.write_text("nodes: [{name: n, devices: 4, kind: v100, within: dgx1.txt}]")
    with pytest.raises(ConfigError, match=r"nodes\[0\]: .*lists 8 GPUs, and a node has 4 devices"):
        read_cluster(path)
    (tmp_path / "dgx1.txt").write_text("command not found")
    with pytest.raises(ConfigError, match=r"cluster.yaml: .*dgx1.txt: no line GPU0"):
        read_cluster(path)


NAMES = {"pairs": PAIRS, "pcie": PCIE, "nvswitch": NVSWITCH, "cube-mesh": CUBE_MESH}


@pytest.mark.parametrize(
    ("within", "nodes", "busy", "members", "goes_to"),
    [
        ("pairs", 1, (), 2, (0, 1)),
        ("pairs", 1, (0,), 2, (2, 3)),  # the pair that is whole
        ("pairs", 1, (0, 3), 2, (1, 2)),  # none is
        ("pcie", 1, (), 2, (0, 1)),  # below one switch
        ("pcie", 1, (0, 4), 2, (6, 7)),
        ("pcie", 1, (0,), 4, (4, 5, 6, 7)),  # within one half
        ("pcie", 1, (4,), 4, (0, 1, 2, 3)),
        ("pcie", 1, (0, 2, 6), 3, (4, 5, 7)),
        ("nvswitch", 1, (), 8, tuple(range(8))),
        ("nvswitch", 1, (2, 5), 4, (0, 1, 3, 4)),  # all are as near: the first ones
        ("cube-mesh", 1, (1,), 4, (4, 5, 6, 7)),  # within one quad
        ("pairs", 2, (1, 2), 2, (4, 5)),
        ("pairs", 2, (1,), 4, (4, 5, 6, 7)),  # not over two nodes
        ("pcie", 2, (0, 5, 8, 12), 4, (2, 3, 6, 7)),  # two whole switches, of no half
        ("pcie", 2, (0, 1, 12), 10, (*range(4, 12), 14, 15)),  # two halves, and a switch
        ("nvswitch", 2, (3,), 8, tuple(range(8, 16))),
    ],
)
def test_c3_a_gang_is_placed_on_devices_that_a_listing_shows_as_near(
    tmp_path, within, nodes, busy, members, goes_to
):
    (tmp_path / "n.topo.txt").write_text(listing(NAMES[within], 2))
    (tmp_path / "cluster.yaml").write_text(
        f'nodes: [{{name: "n[1-{nodes}]", devices: {len(NAMES[within])}, kind: v100, '
        "within: n.topo.txt}]\ntopology: {groups: {rack: 2}}\n"
    )
    there = read_cluster(tmp_path / "cluster.yaml")
    tenants = [job(f"on {device}", gpus=1) for device in busy]
    ledger = Ledger(there, Queue(lambda job, status: (job.submit_s,)))
    for tenant, device in zip(tenants, busy, strict=True):
        ledger.submit(tenant, 0.0)
        ledger.apply([Start(tenant.job_id, (there.full_allocations[device],))], 0.0)
    ledger.submit(job("gang", 1.0, gpus=members), 1.0)
    for optimiser in ("tree", "frog-leaping"):
        state = State(ledger, 1.0, Progress())
        actions = Gang(optimiser=optimiser).decide(
            state, Forecasts(NoForecasts(), there), Random(0)
        )
        assert actions == [
            Start("gang", tuple(there.full_allocations[device] for device in goes_to))
        ]
