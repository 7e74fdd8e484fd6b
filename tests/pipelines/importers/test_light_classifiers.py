"""SqueezeNet, ShuffleNet V2 and MNASNet against the sizes in their papers."""

import pytest
import torch

from presage.pipelines.importers.public_models.light_classifiers import (
    Fire,
    ShuffleUnit,
    mnasnet,
    shufflenet_v2,
    squeezenet,
)
from presage.pipelines.importers.public_models.torchvision_models import (
    CLASSIFIERS,
    trace_classifier,
)


@pytest.mark.parametrize(
    ("make", "size", "multiply_adds"),
    [  # of the papers, in millions; SqueezeNet's of torchvision's documentation
        (shufflenet_v2, 0.5, 41),
        (shufflenet_v2, 1.0, 146),
        (shufflenet_v2, 1.5, 299),
        (shufflenet_v2, 2.0, 591),
        (mnasnet, 1.0, 315),
        (squeezenet, "1.0", 819),
        (squeezenet, "1.1", 349),
    ],
)
def test_a_forward_pass_has_the_multiply_adds_of_the_paper(make, size, multiply_adds):
    name = {
        shufflenet_v2: f"shufflenet_v2_x{size}",
        mnasnet: f"mnasnet{size}",
        squeezenet: f"squeezenet{size}",
    }[make].replace(".", "_")

    graph = trace_classifier(name, 1, "fp32", training=False)

    products = {"Conv2D", "PointwiseConv2D", "DepthwiseConv2D", "MatMul"}
    found = sum(node.count * node.flops for node in graph.nodes if node.kind in products) / 2e6
    assert found == pytest.approx(multiply_adds, rel=0.03)


@pytest.mark.parametrize(
    "name", [n for n in CLASSIFIERS if n.startswith(("squeeze", "shuffle", "mnas"))]
)
def test_the_output_has_a_thousand_classes(name):
    with torch.device("meta"):
        logits = CLASSIFIERS[name].make()(torch.empty(2, 3, 224, 224))

    assert logits.shape == (2, 1000)


def test_a_fire_module_squeezes_and_expands():
    assert Fire(96, 16, 64)(torch.zeros(1, 96, 5, 5)).shape == (1, 128, 5, 5)


def test_a_shuffle_unit_passes_half_of_the_channels_and_shuffles_them():
    unit = ShuffleUnit(8, 8, stride=1).eval()
    x = torch.rand(1, 8, 4, 4)

    out = unit(x)

    assert torch.equal(out[:, ::2], x[:, :4])  # every other channel is one that passed
    assert ShuffleUnit(8, 12, stride=2)(x).shape == (1, 12, 2, 2)
