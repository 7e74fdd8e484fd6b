"""Multilayer perceptron on flat images, as on MNIST."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

PIXELS = 28 * 28
CLASSES = 10


def mlp(width: int, depth: int) -> nn.Sequential:
    """(B, PIXELS) -> logits (B, CLASSES), through ``depth`` hidden layers."""
    layers: list[nn.Module] = []
    for layer in range(depth):
        layers += [nn.Linear(PIXELS if layer == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def training_step(*, batch_size: int, optimizer: str, width: int, depth: int) -> TrainingStep:
    """Return an image classification step."""
    images = torch.randn(batch_size, PIXELS)
    labels = torch.randint(CLASSES, (batch_size,))
    return supervised(
        mlp(width, depth),
        (images,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=PIXELS,
    )


FAMILY = Family(
    name="mlp",
    variants={
        "w128-d2": {"width": 128, "depth": 2},
        "w512-d3": {"width": 512, "depth": 3},
        "w512-d12": {"width": 512, "depth": 12},
        "w1536-d4": {"width": 1536, "depth": 4},
        "w4096-d2": {"width": 4096, "depth": 2},
    },
    batch_sizes=(8, 64, 256),
    large={
        "w2048-d16": {"width": 2048, "depth": 16},
        "w4096-d8": {"width": 4096, "depth": 8},
        "w8192-d4": {"width": 8192, "depth": 4},
    },
    large_batch_sizes=(256, 1024, 4096),
    optimizer="sgd",
    build=training_step,
)
