"""Inverted residuals with depthwise convolutions (Sandler et al. 2018), for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES = 100
EXPANSION = 6


def convolution(
    channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution that keeps the side (unless strided), then batch norm."""
    return nn.Sequential(
        nn.Conv2d(
            channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(channels_out),
    )


class InvertedResidual(nn.Module):
    """Widen by 1 x 1, filter each channel by itself, narrow by 1 x 1."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        hidden = EXPANSION * channels_in
        self.has_shortcut = stride == 1 and channels_in == channels_out
        self.body = nn.Sequential(
            convolution(channels_in, hidden, 1),
            nn.ReLU6(inplace=True),
            convolution(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.ReLU6(inplace=True),
            convolution(hidden, channels_out, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels_out, H / stride, W / stride)."""
        out: Tensor = self.body(x)
        return x + out if self.has_shortcut else out


def mobilenet(width: int, blocks: int) -> nn.Sequential:
    """(B, 3, H, W) -> logits (B, CLASSES); four stages of ``blocks`` inverted residuals."""
    layers: list[nn.Module] = [convolution(3, width, 3), nn.ReLU6(inplace=True)]
    channels = width
    for stage in range(4):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(InvertedResidual(channels, width * 2**stage, stride))
            channels = width * 2**stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def training_step(
    *, batch_size: int, optimizer: str, width: int, blocks: int, side: int
) -> TrainingStep:
    """Image classification."""
    images = torch.randn(batch_size, 3, side, side)
    labels = torch.randint(CLASSES, (batch_size,))
    return supervised(
        mobilenet(width, blocks),
        (images,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=3 * side * side,
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
    optimizer="sgd",
    build=training_step,
)
