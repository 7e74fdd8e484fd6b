"""Densely connected networks (Huang et al. 2016): every layer reads all previous layers.

As published for the 1000 classes of ImageNet, DenseNet-121 has 7,978,856 parameters, 169
14,149,480 and 201 20,013,928 (torchvision's ``densenet121`` and so on). The small variants are
the paper's DenseNet-BC for CIFAR-10: three blocks on 32 x 32 images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    CIFAR_SIDE,
    classes_at,
    classification_step,
)

BLOCKS = {  # layers of each block, by depth: table 1 of the paper
    121: (6, 12, 24, 16),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
}
GROWTH = 32  # growth of the published networks
BOTTLENECK = 4


def _norm_convolution(
    channels_in: int, channels_out: int, kernel: int
) -> tuple[nn.Module, nn.Module, nn.Module]:
    return (
        nn.BatchNorm2d(channels_in),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, bias=False),
    )


class DenseLayer(nn.Module):
    """Adds ``growth`` channels to its input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.grow = nn.Sequential(
            *_norm_convolution(channels, BOTTLENECK * growth, 1),
            *_norm_convolution(BOTTLENECK * growth, growth, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, channels + growth, H, W)."""
        return torch.cat([x, self.grow(x)], dim=1)


def densenet(growth: int, blocks: Sequence[int], side: int) -> nn.Sequential:
    """(B, 3, side, side) -> logits (B, classes); the channels halve between two blocks."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    if side != CIFAR_SIDE:
        layers = [
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
    for block, count in enumerate(blocks):
        if block > 0:
            layers += [*_norm_convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    return nn.Sequential(
        *layers,
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes_at(side)),
    )


def training_step(
    *,
    batch_size: int,
    optimizer: str,
    growth: int = GROWTH,
    layers: int = 0,
    depth: int = 0,
    side: int = CIFAR_SIDE,
) -> TrainingStep:
    """Classify images with the published network of a depth, else with three equal blocks."""
    return classification_step(
        densenet(growth, BLOCKS[depth] if depth else [layers] * 3, side),
        batch_size=batch_size,
        optimizer=optimizer,
        side=side,
        classes=classes_at(side),
    )


FAMILY = Family(
    name="densenet",
    variants={
        "k8-d22": {"growth": 8, "layers": 3},
        "k12-d16": {"growth": 12, "layers": 2},
        "k12-d40": {"growth": 12, "layers": 6},
        "k24-d16": {"growth": 24, "layers": 2},
    },
    batch_sizes=(2, 4, 16),
    large={
        "121-s224": {"depth": 121, "side": 224},
        "169-s224": {"depth": 169, "side": 224},
        "201-s224": {"depth": 201, "side": 224},
    },
    large_batch_sizes=(8, 16, 32, 64, 128),
    optimizer="sgd",
    build=training_step,
)
