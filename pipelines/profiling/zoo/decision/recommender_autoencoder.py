"""Denoising autoencoder over a user's items (Liang et al. 2018, Mult-DAE).

As published for MovieLens-20M, 20,108 items through 200 units: 8,063,508 parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

SHARE_OF_ITEMS = 0.01  # items chosen per user: MovieLens-20M has 0.4 %, MovieLens-1M 4.5 %


def autoencoder(items: int, width: int) -> nn.Sequential:
    """Return a network: chosen items (B, items) as 0 or 1 -> logits (B, items)."""
    return nn.Sequential(
        nn.Dropout(0.5), nn.Linear(items, width), nn.Tanh(), nn.Linear(width, items)
    )


def training_step(*, batch_size: int, optimizer: str, items: int, width: int) -> TrainingStep:
    """Return the reconstruction of the chosen items under a multinomial likelihood."""
    chosen = (torch.rand(batch_size, items) < SHARE_OF_ITEMS).float()

    def loss(logits: Tensor) -> Tensor:
        return -(F.log_softmax(logits, dim=1) * chosen).sum(dim=1).mean()

    return supervised(
        autoencoder(items, width), (chosen,), loss, optimizer=optimizer, input_elements=items
    )


FAMILY = Family(
    name="recommender_autoencoder",
    variants={
        "i4k-w64": {"items": 4_000, "width": 64},
        "i20k-w200": {"items": 20_000, "width": 200},
        "i40k-w100": {"items": 40_000, "width": 100},
        "i40k-w256": {"items": 40_000, "width": 256},
    },
    batch_sizes=(4, 16, 64, 128),
    large={"ml20m-w200": {"items": 20_108, "width": 200}},
    large_batch_sizes=(512, 1024, 2048, 4096, 8192),
    optimizer="adam",
    build=training_step,
)
