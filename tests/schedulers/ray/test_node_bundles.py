"""What a live cluster reserves on each node of Ray."""

from __future__ import annotations

import pytest

from presage.errors import ConfigError
from presage.schedulers.ray.node_bundles import NodeBundle, node_bundles


def node(cpus, gpus=0, *, alive=True):
    return {"Alive": alive, "Resources": {"CPU": float(cpus), "GPU": float(gpus), "memory": 1e9}}


HEAD = {"Alive": True, "Resources": {"memory": 1e9, "node:__internal_head__": 1.0}}


@pytest.mark.parametrize(
    ("nodes", "options", "bundles"),
    [
        ([node(8), node(4)], {}, [(8, 0), (4, 0)]),
        ([HEAD, node(2), node(2)], {}, [(2, 0), (2, 0)]),
        ([node(8), node(32, 4), node(64, 8)], {}, [(64, 8), (32, 4)]),
        ([node(8), node(32, 4)], {"gpus": 0}, [(32, 0), (8, 0)]),
        ([node(32, 4), node(64, 8)], {"gpus": 2, "cpus": 8}, [(8, 2), (8, 2)]),
        ([node(32, 4), node(64, 8)], {"count": 1}, [(64, 8)]),
        ([node(8), node(4, alive=False)], {}, [(8, 0)]),
        ([node(8), node(2)], {"cpus": 4}, [(4, 0)]),
    ],
)
def test_each_node_with_devices_has_a_bundle(nodes, options, bundles):
    assert node_bundles(nodes, **options) == [NodeBundle(*one) for one in bundles]


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ([], {}, "0 of the 0 nodes"),
        ([HEAD], {}, "0 of the 1 nodes"),
        ([node(2), node(2)], {"count": 3}, "2 of the 2 nodes"),
        ([node(2)], {"cpus": 4}, "4 processors"),
        ([node(2)], {"gpus": 1}, "1 GPUs"),
    ],
)
def test_too_few_nodes_are_an_error_with_a_remedy(nodes, options, message):
    with pytest.raises(ConfigError, match="see `ray status`") as error:
        node_bundles(nodes, **options)
    assert message in str(error.value)


def test_a_bundle_is_written_as_ray_writes_it():
    assert NodeBundle(8, 2).resources() == {"CPU": 8.0, "GPU": 2.0}
    assert NodeBundle(8, 0).resources() == {"CPU": 8.0}
