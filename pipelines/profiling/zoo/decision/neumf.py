"""Neural matrix factorization (He et al. 2017): a factor product in parallel with an MLP.

As published, the MLP is a tower: its input is four times as wide as the predictive factors, and
each layer half as wide as the previous. With 64 factors it has 31,766,785 parameters for
MovieLens-20M. (MLPerf's, 31,832,577, has one more layer of 256.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family


class NeuMF(nn.Module):
    """Generalised matrix factorization (GMF) and an MLP, each with its own embeddings."""

    def __init__(self, users: int, items: int, factors: int, tower: Sequence[int]) -> None:
        super().__init__()
        self.gmf_user = nn.Embedding(users, factors)
        self.gmf_item = nn.Embedding(items, factors)
        self.mlp_user = nn.Embedding(users, tower[0] // 2)
        self.mlp_item = nn.Embedding(items, tower[0] // 2)
        layers: list[nn.Module] = []
        for before, after in pairwise(tower):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Linear(factors + tower[-1], 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Ids (B,) and (B,) -> logits of an interaction (B,)."""
        product = self.gmf_user(user) * self.gmf_item(item)  # (B, factors)
        mixed = self.mlp(torch.cat([self.mlp_user(user), self.mlp_item(item)], dim=1))
        logits: Tensor = self.head(torch.cat([product, mixed], dim=1))
        return logits.squeeze(1)


def training_step(
    *, batch_size: int, optimizer: str, users: int, items: int, width: int = 0, factors: int = 0
) -> TrainingStep:
    """Return a step on implicit feedback (did this user take this item); a sample is two ids.

    With ``factors`` the network is the published one, else all its embeddings are ``width`` wide.
    """
    tower = (4 * factors, 2 * factors, factors) if factors else (2 * width, 2 * width, width)
    user = torch.randint(users, (batch_size,))
    item = torch.randint(items, (batch_size,))
    labels = torch.randint(2, (batch_size,)).float()
    return supervised(
        NeuMF(users, items, factors or width, tower),
        (user, item),
        lambda logits: F.binary_cross_entropy_with_logits(logits, labels),
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
    large={
        "ml20m": {"users": 138_493, "items": 26_744, "factors": 64},
        "ml1m": {"users": 6_040, "items": 3_706, "factors": 64},
    },
    large_batch_sizes=(256, 2048, 16384, 131072, 1048576),
    optimizer="adam",
    build=training_step,
)
