"""Neural matrix factorization (He et al. 2017): a factor product beside an MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family


class NeuMF(nn.Module):
    """Generalised matrix factorization (GMF) and an MLP, each with its own embeddings."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.gmf_user = nn.Embedding(users, width)
        self.gmf_item = nn.Embedding(items, width)
        self.mlp_user = nn.Embedding(users, width)
        self.mlp_item = nn.Embedding(items, width)
        self.mlp = nn.Sequential(
            nn.Linear(2 * width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Ids (B,) and (B,) -> logits of an interaction (B,)."""
        product = self.gmf_user(user) * self.gmf_item(item)  # (B, width)
        mixed = self.mlp(torch.cat([self.mlp_user(user), self.mlp_item(item)], dim=1))
        logits: Tensor = self.head(torch.cat([product, mixed], dim=1))
        return logits.squeeze(1)


def training_step(
    *, batch_size: int, optimizer: str, users: int, items: int, width: int
) -> TrainingStep:
    """Implicit feedback: did this user take this item; a sample is two ids."""
    user = torch.randint(users, (batch_size,))
    item = torch.randint(items, (batch_size,))
    taken = torch.randint(2, (batch_size,)).float()
    return supervised(
        NeuMF(users, items, width),
        (user, item),
        lambda logits: F.binary_cross_entropy_with_logits(logits, taken),
        optimizer=optimizer,
        input_elements=2,
    )


FAMILY = Family(
    name="neumf",
    variants={
        "u6k-w32": {"users": 6_000, "items": 4_000, "width": 32},
        "u140k-w16": {"users": 140_000, "items": 27_000, "width": 16},
        "u140k-w64": {"users": 140_000, "items": 27_000, "width": 64},
        "u480k-w32": {"users": 480_000, "items": 18_000, "width": 32},
    },
    batch_sizes=(256, 2048, 8192, 32768),
    optimizer="adam",
    build=training_step,
)
