"""Nodes of a Kubernetes cluster as nodes and devices of the scheduling core."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.schedulers.kubernetes.fleet import FleetOptions, device_kind_of, make_fleet
from tests.schedulers.kubernetes.manifests import node

LEAF, SPINE = "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"


def rack_node(name: str, leaf: str, spine: str, **options):
    return node(name, labels={LEAF: leaf, SPINE: spine}, **options)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H200"}, "h200"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "a100-80gb-sxm"),
        ({"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB-SHARED"}, "v100-16gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"},
         "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-H200", "presage.dev/device-kind": "h200-nvl"},
         "h200-nvl"),
        ({}, "unknown"),
    ],
)  # fmt: skip
def test_the_device_kind_comes_from_the_product_label(labels, kind):
    assert device_kind_of(node("n", labels=labels)) == kind


def test_nodes_are_ordered_by_the_labels_of_racks_and_spines():
    fleet = make_fleet(
        [
            rack_node("n0", "l1", "s1"), rack_node("n1", "l2", "s0", gpus=4),
            rack_node("n2", "l1", "s1"), rack_node("n3", "l3", "s0"), node("single"),
            node("cpus", gpus=0),
        ],
        FleetOptions(),
    )  # fmt: skip
    assert fleet is not None
    cluster = fleet.cluster
    assert [one.name for one in cluster.nodes] == ["single", "n1", "n3", "n0", "n2"]
    assert cluster.devices == 36
    assert cluster.topology.depth_first.tolist() == list(range(36))
    firsts = {node.name: cluster.first_device[i] for i, node in enumerate(cluster.nodes)}

    def between(a: str, b: str) -> float:
        return float(cluster.topology.distance(firsts[a], firsts[b]))

    assert between("n0", "n2") == 10.0  # a rack
    assert between("n1", "n3") == 20.0  # a spine
    assert between("n0", "n1") == between("single", "n0") == 40.0


def test_nodes_of_a_rack_are_close_without_a_spine_label():
    fleet = make_fleet([node(name, labels={LEAF: "l0"}) for name in ("a", "b")], FleetOptions())
    assert fleet is not None
    assert fleet.cluster.topology.distance([0], [8]).tolist() == [10.0]


def test_shared_devices_count_once_and_a_kind_has_its_smallest_memory():
    labels = {"nvidia.com/gpu.product": "NVIDIA-H200", "presage.dev/node-layout": "nvswitch"}
    fleet = make_fleet(
        [
            node("a", gpus=32, labels={**labels, "nvidia.com/gpu.replicas": "4"}),
            node("b", labels={**labels, "nvidia.com/gpu.memory": "140000"}),
            node("c", labels={"presage.dev/node-layout": "nvlink-pairs"}, gpus=3),
        ],
        FleetOptions(),
    )
    assert fleet is not None
    assert fleet.pods_per_device == (4, 1, 1)
    assert [one.devices for one in fleet.cluster.nodes] == [8, 8, 3]
    assert fleet.cluster.memory_of == {"h200": 140_000 * 2**20, "unknown": 1}
    # One NVLink apart; an invalid label is ignored.
    assert fleet.cluster.topology.distance([0, 8, 16], [7, 15, 17]).tolist() == [1.0, 1.0, 5.0]


def test_a_cluster_without_devices_has_no_fleet():
    assert make_fleet([node("cpus", gpus=0)], FleetOptions()) is None
