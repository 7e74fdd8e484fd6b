"""MobileNetV2 (Sandler et al. 2018): inverted residuals with depthwise convolutions.

As published it has 3,504,872 parameters for the 1000 classes of ImageNet (torchvision's
``mobilenet_v2``). For CIFAR-10 the stem and the first widening stage keep the side.
"""

from __future__ import annotations

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
    convolution,
)

CLASSES = 100  # of the small variants
EXPANSION = 6
STAGES = (  # expansion, channels, blocks, stride of the first: table 2 of the paper
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, HEAD = 32, 1280


def small_mobilenet(width: int, blocks: int) -> nn.Sequential:
    """(B, 3, H, W) -> logits (B, CLASSES); four stages of ``blocks`` inverted residuals."""
    layers: list[nn.Module] = [convolution(3, width, 3), nn.ReLU6(inplace=True)]
    channels = width
    for stage in range(4):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            out = width * 2**stage
            layers.append(InvertedResidual(channels, EXPANSION * channels, out, stride=stride))
            channels = out
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def mobilenet_v2(side: int) -> nn.Sequential:
    """(B, 3, side, side) -> logits (B, classes), as published."""
    layers: list[nn.Module] = [
        convolution(3, STEM, 3, stride=1 if side == CIFAR_SIDE else 2),
        nn.ReLU6(inplace=True),
    ]
    channels = STEM
    for stage, (expansion, out, blocks, stage_stride) in enumerate(STAGES):
        for block in range(blocks):
            keeps_side = block > 0 or (stage == 1 and side == CIFAR_SIDE)
            stride = 1 if keeps_side else stage_stride
            layers.append(InvertedResidual(channels, expansion * channels, out, stride=stride))
            channels = out
    return nn.Sequential(
        *layers,
        convolution(channels, HEAD, 1),
        nn.ReLU6(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(HEAD, classes_at(side)),
    )


def training_step(
    *, batch_size: int, optimizer: str, side: int, width: int = 0, blocks: int = 0
) -> TrainingStep:
    """Return an image classification step; without a width, of the published network."""
    return classification_step(
        small_mobilenet(width, blocks) if width else mobilenet_v2(side),
        batch_size=batch_size,
        optimizer=optimizer,
        side=side,
        classes=CLASSES if width else classes_at(side),
    )


FAMILY = Family(
    name="mobilenet",
    variants={
        "w8-d4-s32": {"width": 8, "blocks": 1, "side": 32},
        "w16-d4-s32": {"width": 16, "blocks": 1, "side": 32},
        "w16-d12-s32": {"width": 16, "blocks": 3, "side": 32},
        "w8-d8-s56": {"width": 8, "blocks": 2, "side": 56},
    },
    batch_sizes=(2, 8, 16, 32),
    large={"v2-s224": {"side": 224}, "v2-s32": {"side": 32}},
    large_batch_sizes=(16, 32, 64, 128, 256),
    optimizer="sgd",
    build=training_step,
)
