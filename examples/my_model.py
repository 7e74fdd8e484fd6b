"""Custom model for `presage predict --job examples.my_model:classifier`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def classifier(batch_size: int) -> tuple[nn.Module, Tensor]:
    """Return a small image classifier and one batch of its input; called on the meta device."""
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(2048, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return module, torch.empty(batch_size, 3, 32, 32)
