"""Vision transformer (Dosovitskiy et al. 2020) over patches of 16 x 16 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    classification_step,
)
from presage.pipelines.profiling.zoo.language.gpt import Block


class VisionTransformer(nn.Module):
    """Patch tokens and a class token, blocks, a head on the class token.

    The large variants have the published 86,567,656 (B/16), 22,050,664 (S/16, DeiT: Touvron et
    al. 2021) and 304,326,632 (L/16) parameters, as torchvision and timm count them.
    """

    def __init__(
        self, width: int, depth: int, head_width: int, patch: int, side: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn((side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(
            *(Block(width, head_width, is_causal=False) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, side, side) -> logits (B, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # (B, T, width)
        summary = self.class_token.expand(len(images), -1, -1)
        states = self.blocks(torch.cat([summary, tokens], dim=1) + self.position)
        logits: Tensor = self.head(self.norm(states[:, 0]))
        return logits


def training_step(
    *, batch_size: int, optimizer: str, side: int, classes: int, **sizes: int
) -> TrainingStep:
    """Return an image classification step; ``sizes`` are those of :class:`VisionTransformer`."""
    model = VisionTransformer(side=side, classes=classes, **sizes)
    return classification_step(
        model, batch_size=batch_size, optimizer=optimizer, side=side, classes=classes
    )


IMAGENET = {"head_width": 64, "patch": 16, "side": 224, "classes": 1000}
CIFAR = {"head_width": 32, "patch": 4, "side": 32, "classes": 100}

FAMILY = Family(
    name="vit",
    variants={
        "w64-d4-s32": CIFAR | {"width": 64, "depth": 4},
        "w128-d6-s32": CIFAR | {"width": 128, "depth": 6},
        "w192-d2-s64": CIFAR | {"width": 192, "depth": 2, "patch": 8, "side": 64},
        "w256-d4-s32": CIFAR | {"width": 256, "depth": 4, "patch": 8},
    },
    batch_sizes=(1, 4, 16),
    optimizer="adamw",
    build=training_step,
    large={
        "s16-s224": IMAGENET | {"width": 384, "depth": 12},
        "b16-s224": IMAGENET | {"width": 768, "depth": 12},
        "l16-s224": IMAGENET | {"width": 1024, "depth": 24},
    },
    large_batch_sizes=(16, 64, 256),
)
