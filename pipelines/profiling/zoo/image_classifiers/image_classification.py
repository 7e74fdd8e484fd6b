"""Training step that all image classifiers of the zoo share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised

CIFAR_SIDE = 32  # published networks use another stem and other classes for this size


def classes_at(side: int) -> int:
    """Return the number of classes for images of this side: CIFAR-10's, else ImageNet's."""
    return 10 if side == CIFAR_SIDE else 1000


def classification_step(
    model: nn.Module, *, batch_size: int, optimizer: str, side: int, classes: int
) -> TrainingStep:
    """Return the step of a model (B, 3, side, side) -> logits (B, classes) on random images."""
    images = torch.randn(batch_size, 3, side, side)
    labels = torch.randint(classes, (batch_size,))
    return supervised(
        model,
        (images,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=3 * side * side,
    )
