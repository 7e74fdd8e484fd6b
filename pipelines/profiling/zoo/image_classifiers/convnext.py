"""ConvNeXt: a convolutional network built like a vision transformer (Liu et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    classification_step,
)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of every pixel."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise 7 x 7 convolution, then an MLP of each pixel, scaled, plus a shortcut.

    Without the paper's stochastic depth, which drops a few samples' blocks at random.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) -> the same shape."""
        pixels = self.depthwise(x).permute(0, 2, 3, 1)  # (B, H, W, width)
        out: Tensor = x + (self.scale * self.mlp(pixels)).permute(0, 3, 1, 2)
        return out


def convnext(width: int, blocks: int, third: int, classes: int) -> nn.Sequential:
    """(B, 3, H, W) -> logits (B, classes).

    Four stages double the width, each with ``blocks`` blocks, but the third with ``third``. With
    96, 3, 9 and 1000 classes (T) it has the published 28,589,128 parameters, with 128, 3, 27 (B)
    88,591,464.
    """
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=4), ChannelNorm(width, eps=1e-6)]
    for stage, count in enumerate((blocks, blocks, third, blocks)):
        channels = width * 2**stage
        if stage > 0:
            layers += [
                ChannelNorm(channels // 2, eps=1e-6),
                nn.Conv2d(channels // 2, channels, 2, stride=2),
            ]
        layers += [Block(channels) for _ in range(count)]
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(8 * width, eps=1e-6),
        nn.Linear(8 * width, classes),
    )


def training_step(
    *, batch_size: int, optimizer: str, side: int, classes: int, **sizes: int
) -> TrainingStep:
    """Return an image classification step; ``sizes`` are those of :func:`convnext`."""
    model = convnext(classes=classes, **sizes)
    return classification_step(
        model, batch_size=batch_size, optimizer=optimizer, side=side, classes=classes
    )


FAMILY = Family(
    name="convnext",
    variants={
        "w16-d6-s64": {"width": 16, "blocks": 1, "third": 3, "side": 64, "classes": 100},
        "w32-d6-s64": {"width": 32, "blocks": 1, "third": 3, "side": 64, "classes": 100},
        "w48-d4-s32": {"width": 48, "blocks": 1, "third": 1, "side": 32, "classes": 100},
        "w16-d12-s96": {"width": 16, "blocks": 2, "third": 6, "side": 96, "classes": 100},
    },
    batch_sizes=(1, 4, 16),
    optimizer="adamw",
    build=training_step,
    large={
        "t-s224": {"width": 96, "blocks": 3, "third": 9, "side": 224, "classes": 1000},
        "b-s224": {"width": 128, "blocks": 3, "third": 27, "side": 224, "classes": 1000},
    },
    large_batch_sizes=(16, 32, 64, 128),
)
