"""Vision models of the zoo have their published sizes, and run on the meta device."""

import pytest
import torch

from presage.features.from_torch.graph import trace_step
from presage.features.graph.roofline import MATRIX_KINDS
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, build, parse
from presage.pipelines.profiling.zoo.decision.a3c import DISCOUNT, advantages

PARAMETERS = {  # where a number is from is said in the family's docstring
    "a3c/pong-n20": 3_249_639,
    "cyclegan/r9-s256": 2 * (11_378_179 + 2_764_737),
    "dcgan/w64-s64": 3_576_704 + 2_765_568,
    "densenet/121-s224": 7_978_856,
    "densenet/169-s224": 14_149_480,
    "densenet/201-s224": 20_013_928,
    "efficientnet/b0-s224": 5_288_548,
    "efficientnet/b0-s32": 5_288_548 - 990 * 1281,  # 10 classes, not 1000
    "efficientnet/b4-s380": 19_341_616,
    "inception/v3-s299": 27_161_264,
    "mlp/w4096-d8": 785 * 4096 + 7 * 4097 * 4096 + 4097 * 10,
    "mobilenet/v2-s224": 3_504_872,
    "mobilenet/v2-s32": 3_504_872 - 990 * 1281,
    "mobilenet_v3/large-s224": 5_483_032,
    "mobilenet_v3/small-s224": 2_542_856,
    "neumf/ml1m": (6_040 + 3_706) * (128 + 64) + 41_281,
    "neumf/ml20m": 31_766_785,
    "pointnet/shapenet-p2500": 3_473_881,
    "ppo/lunarlander": 9_797,
    "recommender_autoencoder/ml20m-w200": 8_063_508,
    "resnet/18-s224": 11_689_512,
    "resnet/18-s32": 11_173_962,
    "resnet/34-s224": 21_797_672,
    "resnet/50-s224": 25_557_032,
    "resnet/50-s32": 23_520_842,
    "resnet/101-s224": 44_549_160,
    "resnet/152-s224": 60_192_808,
    "td3/bipedalwalker": 2 * (73_220 + 2 * 73_473),
    "unet/w64-d4-s256": 31_030_658 + 2 * 64 * 9 + 2 * 65,  # the paper has 1 channel, 2 classes
    "vgg/11-s224": 132_863_336,
    "vgg/11-s32": 9_231_114,
    "vgg/16-s224": 138_357_544,
    "vgg/19-s224": 143_667_240,
    "yolov3/s416": 61_949_149,
}


OF_EACH_FAMILY = {name.split("/")[0]: name for name in reversed(PARAMETERS)}
DEPLOYED = {  # parameters of the network that answers, where training has more of them
    "a3c/pong-n20": 3_249_639,
    "cyclegan/r9-s256": 11_378_179,
    "dcgan/w64-s64": 3_576_704,
    "inception/v3-s299": 23_834_568,
    "ppo/lunarlander": 4_996,
    "td3/bipedalwalker": 73_220,
}


def on_meta(name, optimizer=None):
    family, variant = FAMILIES[name.split("/")[0]], name.split("/")[1]
    config = JobConfig(
        family.name, variant, family.large_batch_sizes[0], optimizer or family.optimizer
    )
    with torch.device("meta"):
        return build(config)


def traced(step):
    with torch.device("meta"):
        return trace_step(step.run, step.modules, step.input_elements)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items(), ids=PARAMETERS)
def test_a_published_network_has_its_published_parameters(name, parameters):
    step = on_meta(name)

    assert sum(p.numel() for p in step.parameters()) == parameters


@pytest.mark.parametrize("name", OF_EACH_FAMILY.values())
def test_a_published_network_trains_on_the_meta_device(name):
    graph = traced(on_meta(name))

    assert {node.phase for node in graph.nodes} == {"forward", "backward", "optimizer"}
    assert [node.op for node in graph.nodes if node.kind == "Other"] == []


@pytest.mark.parametrize(("name", "parameters"), DEPLOYED.items(), ids=DEPLOYED)
def test_inference_uses_the_deployed_network(name, parameters):
    step = on_meta(name, "inference")

    assert sum(p.numel() for p in step.parameters()) == parameters
    assert {node.phase for node in traced(step).nodes} == {"forward"}


def test_forward_flops_equal_the_published_ones():
    """Compare giga multiply-adds of one image with those of torchvision and the authors."""
    published = {
        "resnet/50-s224": 4.09,
        "mobilenet/v2-s224": 0.30,
        "mobilenet_v3/large-s224": 0.22,
        "efficientnet/b0-s224": 0.39,
        "inception/v3-s299": 5.71,
        "densenet/121-s224": 2.83,
        "yolov3/s416": 65.86 / 2,
    }
    for name, multiply_adds in published.items():
        nodes = traced(on_meta(name, "inference")).nodes
        flops = sum(n.flops * n.count for n in nodes if n.kind in MATRIX_KINDS)
        images = FAMILIES[name.split("/")[0]].large_batch_sizes[0]
        assert flops / 2e9 / images == pytest.approx(multiply_adds, rel=0.02), name


def test_expected_rewards_have_zero_advantage_and_rewards_propagate_back():
    values = torch.ones(4, 1)
    expected = torch.full((3, 1), 1 - DISCOUNT)  # what keeps a value of one

    assert torch.allclose(advantages(expected, values), torch.zeros(3, 1), atol=1e-6)

    later = advantages(expected + torch.tensor([[0.0], [0.0], [1.0]]), values)
    assert torch.allclose(later, torch.tensor([[DISCOUNT**2], [DISCOUNT], [1.0]]), atol=1e-6)


def test_every_part_of_an_actor_critic_step_is_trained():
    for name in ("td3/o8-w64/b32/adam", "ppo/o4-w32-d2/b64/adam", "cyclegan/w4-r2-s64/b1/adam"):
        step = build(parse(name))
        before = [[p.detach().clone() for p in module.parameters()] for module in step.modules]

        step.run()

        for module, old in zip(step.modules, before, strict=True):
            pairs = zip(module.parameters(), old, strict=True)
            assert any(not torch.equal(p, q) for p, q in pairs), name
