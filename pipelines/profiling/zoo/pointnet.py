"""PointNet classifier of point clouds (Qi et al. 2017), with the input T-Net."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES = 40
AXES = 3


def shared_mlp(*channels: int) -> nn.Sequential:
    """The same MLP for every point, as 1 x 1 convolutions: (B, C0, P) -> (B, Cn, P)."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class TNet(nn.Module):
    """Learns the rotation that brings a cloud into a common pose."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.points = shared_mlp(AXES, width, 4 * width)
        self.head = nn.Sequential(
            nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, AXES * AXES)
        )
        self.identity: Tensor
        self.register_buffer("identity", torch.eye(AXES))

    def forward(self, cloud: Tensor) -> Tensor:
        """(B, AXES, P) -> (B, AXES, AXES)."""
        pooled = self.points(cloud).amax(dim=2)  # (B, 4 * width)
        rotation: Tensor = self.head(pooled).view(-1, AXES, AXES)
        return rotation + self.identity  # so that it starts near no rotation


class PointNet(nn.Module):
    """T-Net, shared MLP, a max over the points that forgets their order, dense head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tnet = TNet(width)
        self.points = shared_mlp(AXES, width, width, 2 * width, 16 * width)
        self.head = nn.Sequential(
            nn.Linear(16 * width, 4 * width),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(4 * width, CLASSES),
        )

    def forward(self, cloud: Tensor) -> Tensor:
        """(B, AXES, P) -> logits (B, CLASSES)."""
        posed = torch.bmm(self.tnet(cloud), cloud)  # (B, AXES, P)
        logits: Tensor = self.head(self.points(posed).amax(dim=2))
        return logits


def training_step(*, batch_size: int, optimizer: str, width: int, points: int) -> TrainingStep:
    """Classification of point clouds."""
    clouds = torch.randn(batch_size, AXES, points)
    labels = torch.randint(CLASSES, (batch_size,))
    return supervised(
        PointNet(width),
        (clouds,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=AXES * points,
    )


FAMILY = Family(
    name="pointnet",
    variants={
        "w16-p256": {"width": 16, "points": 256},
        "w16-p1024": {"width": 16, "points": 1024},
        "w32-p512": {"width": 32, "points": 512},
        "w64-p256": {"width": 64, "points": 256},
    },
    batch_sizes=(2, 8, 16, 32),
    optimizer="adam",
    build=training_step,
)
