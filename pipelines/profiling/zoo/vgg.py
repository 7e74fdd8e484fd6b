"""Plain deep convolutional network for 32 x 32 images (Simonyan, Zisserman 2014)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

SIDE = 32
CLASSES = 100
STAGE_WIDENING = (1, 2, 4, 8, 8)


def vgg(width: int, convolutions: int, dense: int) -> nn.Sequential:
    """(B, 3, SIDE, SIDE) -> logits (B, CLASSES).

    Five stages of ``convolutions`` layers, each ending in a max pool, then two layers ``dense``
    wide, which hold most of the parameters.
    """
    layers: list[nn.Module] = []
    channels = 3
    for widening in STAGE_WIDENING:
        for _ in range(convolutions):
            layers += [
                nn.Conv2d(channels, width * widening, 3, padding=1),
                nn.BatchNorm2d(width * widening),
                nn.ReLU(inplace=True),
            ]
            channels = width * widening
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers,
        nn.Flatten(),  # (B, channels): five pools leave one pixel of the 32 x 32
        nn.Linear(channels, dense),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(dense, dense),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(dense, CLASSES),
    )


def training_step(
    *, batch_size: int, optimizer: str, width: int, convolutions: int, dense: int
) -> TrainingStep:
    """Image classification."""
    images = torch.randn(batch_size, 3, SIDE, SIDE)
    labels = torch.randint(CLASSES, (batch_size,))
    return supervised(
        vgg(width, convolutions, dense),
        (images,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=3 * SIDE * SIDE,
    )


FAMILY = Family(
    name="vgg",
    variants={
        "w16-d8": {"width": 16, "convolutions": 1, "dense": 512},
        "w32-d8": {"width": 32, "convolutions": 1, "dense": 1024},
        "w32-d13": {"width": 32, "convolutions": 2, "dense": 1024},
        "w64-d8": {"width": 64, "convolutions": 1, "dense": 4096},
    },
    batch_sizes=(2, 8, 32, 64),
    optimizer="sgd",
    build=training_step,
)
