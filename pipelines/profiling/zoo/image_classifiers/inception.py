"""Inception v3 (Szegedy et al. 2015): blocks of parallel convolutions.

As published for the 1000 classes of ImageNet it has 27,161,264 parameters with the auxiliary
classifier that only training has, 23,834,568 without (torchvision's ``inception_v3``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import INFERENCE, TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.inception_blocks import Blocks

CLASSES = 1000
SIDE = 299
AUXILIARY_WEIGHT = 0.4


class InceptionV3(nn.Module):
    """Table 1 of the paper; the auxiliary classifier reads the 17 x 17 grid."""

    def __init__(self, narrowing: int, *, has_auxiliary: bool) -> None:
        super().__init__()
        blocks = Blocks(narrowing)
        self.to_grid = nn.Sequential(
            blocks.stem(),
            blocks.square(192, pool=32),
            *(blocks.square(channels, pool=64) for channels in (256, 288)),
            blocks.first_halving(),
            *(blocks.factorized(narrow) for narrow in (128, 160, 160, 192)),
        )
        self.to_logits = nn.Sequential(
            blocks.second_halving(),
            *(blocks.widened(channels) for channels in (1280, 2048)),
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(2048 // narrowing, CLASSES),
        )
        self.to_auxiliary: nn.Module | None = None
        if has_auxiliary:
            self.to_auxiliary = nn.Sequential(
                nn.AvgPool2d(5, 3),
                blocks.convolution(768, 128),
                blocks.convolution(128, 768, 5, padding=0),
                nn.Flatten(),
                nn.Linear(768 // narrowing, CLASSES),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> logits (B, CLASSES, 1), or with the auxiliary ones (B, CLASSES, 2)."""
        grid = self.to_grid(x)
        logits = [self.to_logits(grid)]
        if self.to_auxiliary is not None:
            logits.append(self.to_auxiliary(grid))
        return torch.stack(logits, dim=2)


def training_step(*, batch_size: int, optimizer: str, narrowing: int, side: int) -> TrainingStep:
    """Return an image classification step."""
    images = torch.randn(batch_size, 3, side, side)
    labels = torch.randint(CLASSES, (batch_size,))

    def loss(outputs: Tensor) -> Tensor:
        logits, *auxiliary = outputs.unbind(2)
        losses = [AUXILIARY_WEIGHT * F.cross_entropy(other, labels) for other in auxiliary]
        return sum(losses, start=F.cross_entropy(logits, labels))

    # For smaller images the grid is smaller than the auxiliary classifier's 5 x 5.
    has_auxiliary = optimizer != INFERENCE and side >= SIDE
    return supervised(
        InceptionV3(narrowing, has_auxiliary=has_auxiliary),
        (images,),
        loss,
        optimizer=optimizer,
        input_elements=3 * side * side,
    )


FAMILY = Family(
    name="inception",
    variants={
        "n16-s107": {"narrowing": 16, "side": 107},
        "n8-s107": {"narrowing": 8, "side": 107},
        "n16-s203": {"narrowing": 16, "side": 203},
        "n4-s75": {"narrowing": 4, "side": 75},
    },
    batch_sizes=(2, 4, 8),
    large={"v3-s299": {"narrowing": 1, "side": SIDE}},
    large_batch_sizes=(8, 16, 32, 64, 128),
    optimizer="sgd",
    build=training_step,
)
