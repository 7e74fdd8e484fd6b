"""Residual network of basic blocks for 32 x 32 images (He et al. 2015, section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

SIDE = 32
CLASSES = 10


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels_out, H / stride, W / stride)."""
        return F.relu(self.residual(x) + self.shortcut(x))


def resnet(width: int, blocks: int) -> nn.Sequential:
    """(B, 3, SIDE, SIDE) -> logits (B, CLASSES); three stages, of depth 6 * blocks + 2 in all."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    channels = width
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(channels, width * 2**stage, stride))
            channels = width * 2**stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def training_step(*, batch_size: int, optimizer: str, width: int, blocks: int) -> TrainingStep:
    """Image classification."""
    images = torch.randn(batch_size, 3, SIDE, SIDE)
    labels = torch.randint(CLASSES, (batch_size,))
    return supervised(
        resnet(width, blocks),
        (images,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=3 * SIDE * SIDE,
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
    optimizer="sgd",
    build=training_step,
)
