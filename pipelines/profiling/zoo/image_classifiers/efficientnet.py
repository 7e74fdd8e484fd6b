"""EfficientNet (Tan, Le 2019): inverted residuals with squeeze-and-excitation, SiLU, scaled.

As published for the 1000 classes of ImageNet, B0 has 5,288,548 parameters and B4 19,341,616
(torchvision's ``efficientnet_b0`` and ``efficientnet_b4``). For CIFAR-10 the stem keeps the side.
"""

from __future__ import annotations

import math

from torch import nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    CIFAR_SIDE,
    classes_at,
    classification_step,
)
from presage.pipelines.profiling.zoo.image_classifiers.inverted_residual import (
    InvertedResidual,
    SqueezeExcitation,
    convolution,
    divisible,
    silu,
)

STAGES = (  # expansion, kernel, stride of the first, channels, blocks: table 1, B0
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STEM = 32
DROPPED = 0.2  # drop probability of the last block; that of the first is 0


def efficientnet(*, width: float, depth: float, side: int) -> nn.Sequential:
    """(B, 3, side, side) -> logits (B, classes); B0's channels and blocks, times a factor each."""
    channels = divisible(width * STEM)
    stem_stride = 1 if side == CIFAR_SIDE else 2
    layers: list[nn.Module] = [convolution(3, channels, 3, stride=stem_stride), silu()]
    total = sum(math.ceil(depth * blocks) for *_, blocks in STAGES)
    done = 0
    for expansion, kernel, stage_stride, stage_channels, blocks in STAGES:
        out = divisible(width * stage_channels)
        for block in range(math.ceil(depth * blocks)):
            hidden = divisible(expansion * channels)
            # The squeeze is a quarter of the block's input, not of its hidden channels.
            squeeze = SqueezeExcitation(hidden, max(1, channels // 4), silu, nn.Sigmoid)
            layers.append(
                InvertedResidual(
                    channels,
                    hidden,
                    out,
                    stride=stage_stride if block == 0 else 1,
                    kernel=kernel,
                    activation=silu,
                    squeeze=squeeze,
                    dropped=DROPPED * done / total,
                )
            )
            channels = out
            done += 1
    return nn.Sequential(
        *layers,
        convolution(channels, 4 * channels, 1),
        silu(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2 if width <= 1 else 0.4),
        nn.Linear(4 * channels, classes_at(side)),
    )


def training_step(
    *, batch_size: int, optimizer: str, width_percent: int, depth_percent: int, side: int
) -> TrainingStep:
    """Return an image classification step."""
    return classification_step(
        efficientnet(width=width_percent / 100, depth=depth_percent / 100, side=side),
        batch_size=batch_size,
        optimizer=optimizer,
        side=side,
        classes=classes_at(side),
    )


FAMILY = Family(
    name="efficientnet",
    variants={
        "w25-d25-s64": {"width_percent": 25, "depth_percent": 25, "side": 64},
        "w50-d25-s64": {"width_percent": 50, "depth_percent": 25, "side": 64},
        "w25-d100-s32": {"width_percent": 25, "depth_percent": 100, "side": 32},
        "w25-d50-s96": {"width_percent": 25, "depth_percent": 50, "side": 96},
    },
    batch_sizes=(2, 4, 8),
    large={
        "b0-s224": {"width_percent": 100, "depth_percent": 100, "side": 224},
        "b4-s380": {"width_percent": 140, "depth_percent": 180, "side": 380},
        "b0-s32": {"width_percent": 100, "depth_percent": 100, "side": 32},
    },
    large_batch_sizes=(8, 16, 32, 64, 128, 256),
    optimizer="sgd",
    build=training_step,
)
