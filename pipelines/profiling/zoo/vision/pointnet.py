"""PointNet classifier of point clouds (Qi et al. 2016), with the input T-Net.

As published, with a second T-Net for the features and 40 classes, it has 3.5 M parameters (table
6 of the paper); 3,473,881 with the 16 classes of ShapeNet. The small variants leave out the
second T-Net and the batch norms of the heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES, SHAPENET_CLASSES = 40, 16
AXES = 3
ORTHOGONALITY_WEIGHT = 0.001


def shared_mlp(*channels: int) -> nn.Sequential:
    """Return the same MLP for every point, as 1 x 1 convolutions: (B, C0, P) -> (B, Cn, P)."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def dense(*features: int, has_norm: bool) -> list[nn.Module]:
    """(B, F0) -> (B, Fn)."""
    layers: list[nn.Module] = []
    for before, after in pairwise(features):
        layers.append(nn.Linear(before, after))
        layers += [nn.BatchNorm1d(after)] if has_norm else []
        layers.append(nn.ReLU())
    return layers


class TNet(nn.Module):
    """Predicts a transform of a cloud, or of its features, to a canonical pose."""

    def __init__(
        self, axes: int, shared: Sequence[int], head: Sequence[int], *, has_norm: bool
    ) -> None:
        super().__init__()
        self.points = shared_mlp(axes, *shared)
        self.head = nn.Sequential(
            *dense(shared[-1], *head, has_norm=has_norm), nn.Linear(head[-1], axes * axes)
        )
        self.identity: Tensor
        self.register_buffer("identity", torch.eye(axes))

    def forward(self, cloud: Tensor) -> Tensor:
        """(B, axes, P) -> (B, axes, axes)."""
        pooled = self.points(cloud).amax(dim=2)  # (B, shared[-1])
        rotation: Tensor = self.head(pooled).unflatten(1, self.identity.shape)
        return rotation + self.identity  # starts near the identity


class SmallPointNet(nn.Module):
    """T-Net, shared MLP, order-independent max over the points, dense head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tnet = TNet(AXES, (width, 4 * width), (width,), has_norm=False)
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


class PointNet(nn.Module):
    """As published: both transforms, and batch norm throughout."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.pose = TNet(AXES, (64, 128, 1024), (512, 256), has_norm=True)
        self.local = shared_mlp(AXES, 64, 64)
        self.align = TNet(64, (64, 128, 1024), (512, 256), has_norm=True)
        self.points = shared_mlp(64, 64, 128, 1024)
        self.head = nn.Sequential(
            *dense(1024, 512, 256, has_norm=True), nn.Dropout(0.3), nn.Linear(256, classes)
        )

    def forward(self, cloud: Tensor) -> Tensor:
        """(B, AXES, P) -> logits and the orthogonality error of ``align`` (B, classes + 1)."""
        local = self.local(torch.bmm(self.pose(cloud), cloud))  # (B, 64, P)
        rotation = self.align(local)
        logits = self.head(self.points(torch.bmm(rotation, local)).amax(dim=2))
        product = torch.bmm(rotation, rotation.transpose(1, 2))
        distance = (product - self.align.identity).square().sum(dim=(1, 2))
        return torch.cat([logits, distance.unsqueeze(1)], dim=1)


def training_step(*, batch_size: int, optimizer: str, points: int, width: int = 0) -> TrainingStep:
    """Classify point clouds; without a width, with the published network."""
    clouds = torch.randn(batch_size, AXES, points)
    labels = torch.randint(CLASSES if width else SHAPENET_CLASSES, (batch_size,))

    def loss(outputs: Tensor) -> Tensor:
        logits, distance = outputs[:, :SHAPENET_CLASSES], outputs[:, SHAPENET_CLASSES]
        return F.cross_entropy(logits, labels) + ORTHOGONALITY_WEIGHT * distance.mean()

    return supervised(
        SmallPointNet(width) if width else PointNet(SHAPENET_CLASSES),
        (clouds,),
        (lambda logits: F.cross_entropy(logits, labels)) if width else loss,
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
    large={"shapenet-p2500": {"points": 2500}},
    large_batch_sizes=(16, 32, 64, 128, 256),
    optimizer="adam",
    build=training_step,
)
