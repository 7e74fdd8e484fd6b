"""The published networks have the published sizes, and run where nothing is allocated."""

import pytest
import torch

from presage.features.torch_graph import trace_step
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, build

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


def on_meta(name, optimizer=None):
    family = FAMILIES[name.split("/")[0]]
    batch_size = family.large_batch_sizes[0]
    config = JobConfig(family.name, name.split("/")[1], batch_size, optimizer or family.optimizer)
    with torch.device("meta"):
        return build(config)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items(), ids=PARAMETERS)
def test_a_published_network_has_its_published_parameters(name, parameters):
    step = on_meta(name)

    assert sum(p.numel() for p in step.parameters()) == parameters
