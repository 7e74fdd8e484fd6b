"""Residual networks (He et al. 2015): for 32 x 32 images (section 4.2), and for ImageNet.

As published for the 1000 classes of ImageNet, ResNet-18 has 11,689,512 parameters, ResNet-50
25,557,032 (torchvision's ``resnet18`` and ``resnet50``); the same of width 64 for CIFAR-10, with
a 3 x 3 stem and no pool, 11,173,962 and 23,520,842.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    CIFAR_SIDE,
    classes_at,
    classification_step,
)

STAGES = {  # blocks of each stage, by depth: table 1 of the paper
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
BOTTLENECK_FROM_DEPTH, BOTTLENECK_WIDENING = 50, 4
STEM = 64


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Module:
    if stride == 1 and channels_in == channels_out:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
    )


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions plus a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels_out, H / stride, W / stride)."""
        return F.relu(self.residual(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1, on a quarter of the channels, plus a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        narrow = channels_out // BOTTLENECK_WIDENING
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, narrow, 1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            # The stride is here, as in every published implementation; the paper has it above.
            nn.Conv2d(narrow, narrow, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels_out, H / stride, W / stride)."""
        return F.relu(self.residual(x) + self.shortcut(x))


def small_resnet(width: int, blocks: int) -> nn.Sequential:
    """(B, 3, 32, 32) -> logits (B, classes); three stages, of depth 6 * blocks + 2 in all."""
    layers = _stem(width, kernel=3, stride=1)
    channels = width
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(channels, width * 2**stage, stride))
            channels = width * 2**stage
    return nn.Sequential(*layers, *_head(channels, CIFAR_SIDE))


def resnet(depth: int, side: int) -> nn.Sequential:
    """(B, 3, side, side) -> logits (B, classes), as published; four stages."""
    if side == CIFAR_SIDE:
        layers = _stem(STEM, kernel=3, stride=1)
    else:
        layers = [*_stem(STEM, kernel=7, stride=2), nn.MaxPool2d(3, 2, padding=1)]
    is_deep = depth >= BOTTLENECK_FROM_DEPTH
    make, widening = (Bottleneck, BOTTLENECK_WIDENING) if is_deep else (BasicBlock, 1)
    channels = STEM
    for stage, blocks in enumerate(STAGES[depth]):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(make(channels, widening * STEM * 2**stage, stride))
            channels = widening * STEM * 2**stage
    return nn.Sequential(*layers, *_head(channels, side))


def _stem(width: int, *, kernel: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(3, width, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]


def _head(channels: int, side: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes_at(side))]


def training_step(
    *,
    batch_size: int,
    optimizer: str,
    width: int = 0,
    blocks: int = 0,
    depth: int = 0,
    side: int = CIFAR_SIDE,
) -> TrainingStep:
    """Classify images with the published network of a depth, else with one of that width."""
    return classification_step(
        resnet(depth, side) if depth else small_resnet(width, blocks),
        batch_size=batch_size,
        optimizer=optimizer,
        side=side,
        classes=classes_at(side),
    )


FAMILY = Family(
    name="resnet",
    variants={
        "w8-d20": {"width": 8, "blocks": 3},
        "w16-d8": {"width": 16, "blocks": 1},
        "w16-d20": {"width": 16, "blocks": 3},
        "w32-d14": {"width": 32, "blocks": 2},
        "w48-d8": {"width": 48, "blocks": 1},
    },
    batch_sizes=(2, 8, 32),
    large={
        "18-s32": {"depth": 18, "side": 32},
        "50-s32": {"depth": 50, "side": 32},
        "18-s224": {"depth": 18, "side": 224},
        "34-s224": {"depth": 34, "side": 224},
        "50-s224": {"depth": 50, "side": 224},
        "101-s224": {"depth": 101, "side": 224},
        "152-s224": {"depth": 152, "side": 224},
    },
    large_batch_sizes=(16, 32, 64, 128, 256),
    optimizer="sgd",
    build=training_step,
)
