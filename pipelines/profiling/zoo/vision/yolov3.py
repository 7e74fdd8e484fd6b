"""YOLOv3 (Redmon, Farhadi 2018): Darknet-53 and detection heads on three grids.

As published for the 80 classes of COCO it has 61,949,149 parameters (the trainable ones of the
usual conversions of the authors' weights). The loss is dense: every anchor of every cell has a
target, and anchors without an object have weight zero.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES = 80
ANCHORS = 3  # per cell
BLOCKS = (1, 2, 8, 8, 4)  # residual blocks per stage of Darknet-53: table 1 of the paper
STRIDES = (32, 16, 8)  # pixels per cell, for the three grids
OBJECTS = 0.001  # share of anchors with an object, about ten per image


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the side (unless strided), batch norm, leaky ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.LeakyReLU(0.1, inplace=True),
    )


def alternating(channels_in: int, narrow: int, count: int) -> nn.Sequential:
    """Return ``count`` convolutions: 1 x 1 to ``narrow``, 3 x 3 to twice that, and so on."""
    channels = [channels_in, *(narrow * (1 + i % 2) for i in range(count))]
    kernels = [1 + 2 * (i % 2) for i in range(count)]
    return nn.Sequential(
        *(
            convolution(before, after, kernel)
            for (before, after), kernel in zip(pairwise(channels), kernels, strict=True)
        )
    )


class ResidualBlock(nn.Module):
    """1 x 1 to half the channels, 3 x 3 to all, plus a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = alternating(channels, channels // 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same."""
        out: Tensor = x + self.residual(x)
        return out


class YoloV3(nn.Module):
    """Darknet-53 down to the coarsest grid, then up to two finer ones."""

    def __init__(self, width: int, most_blocks: int) -> None:
        super().__init__()
        self.stem = convolution(3, width, 3)
        self.stages = nn.ModuleList(
            nn.Sequential(
                convolution(width * 2**stage, width * 2 ** (stage + 1), 3, stride=2),
                *(ResidualBlock(width * 2 ** (stage + 1)) for _ in range(min(count, most_blocks))),
            )
            for stage, count in enumerate(BLOCKS)
        )
        coarse, middle, fine = 16 * width, 8 * width, 4 * width
        # A finer grid also reads half of the coarser grid's features.
        channels = (2 * coarse, 2 * middle + middle, 2 * fine + fine)
        narrow = (coarse, middle, fine)
        self.refine = nn.ModuleList(
            alternating(before, after, 5) for before, after in zip(channels, narrow, strict=True)
        )
        self.detect = nn.ModuleList(
            nn.Sequential(
                convolution(after, 2 * after, 3), nn.Conv2d(2 * after, ANCHORS * (5 + CLASSES), 1)
            )
            for after in narrow
        )
        self.rise = nn.ModuleList(
            nn.Sequential(convolution(deep, shallow, 1), nn.Upsample(scale_factor=2))
            for deep, shallow in ((coarse, middle), (middle, fine))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> box, objectness and class logits of each anchor (B, N, 5 + CLASSES)."""
        x = self.stem(x)
        levels: list[Tensor] = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        detections: list[Tensor] = []
        for grid, (refine, detect) in enumerate(zip(self.refine, self.detect, strict=True)):
            if grid > 0:
                x = torch.cat([self.rise[grid - 1](x), levels[-1 - grid]], dim=1)
            x = refine(x)
            output = detect(x).unflatten(1, (ANCHORS, -1))  # (B, ANCHORS, 5 + CLASSES, h, w)
            detections.append(output.permute(0, 1, 3, 4, 2).flatten(1, 3))
        return torch.cat(detections, dim=1)


def training_step(
    *, batch_size: int, optimizer: str, width: int, most_blocks: int, side: int
) -> TrainingStep:
    """Detect objects."""
    images = torch.randn(batch_size, 3, side, side)
    anchors = ANCHORS * sum((side // stride) ** 2 for stride in STRIDES)
    has_object = (torch.rand(batch_size, anchors, 1) < OBJECTS).float()
    boxes = torch.rand(batch_size, anchors, 4)
    classes = (torch.rand(batch_size, anchors, CLASSES) < 1 / CLASSES).float()

    def loss(output: Tensor) -> Tensor:
        box, objectness, kind = torch.split(output, [4, 1, CLASSES], dim=2)
        where = (box - boxes).square().mean(dim=2, keepdim=True)
        class_loss = F.binary_cross_entropy_with_logits(kind, classes, reduction="none")
        object_loss = F.binary_cross_entropy_with_logits(objectness, has_object, reduction="none")
        per_anchor = object_loss + has_object * (where + class_loss.mean(dim=2, keepdim=True))
        total: Tensor = per_anchor.sum() / batch_size
        return total

    return supervised(
        YoloV3(width, most_blocks),
        (images,),
        loss,
        optimizer=optimizer,
        input_elements=3 * side * side,
    )


FAMILY = Family(
    name="yolov3",
    variants={
        "w4-b1-s96": {"width": 4, "most_blocks": 1, "side": 96},
        "w8-b1-s64": {"width": 8, "most_blocks": 1, "side": 64},
        "w4-b8-s128": {"width": 4, "most_blocks": 8, "side": 128},
        "w8-b2-s160": {"width": 8, "most_blocks": 2, "side": 160},
    },
    batch_sizes=(1, 2, 4),
    large={"s416": {"width": 32, "most_blocks": 8, "side": 416}},
    large_batch_sizes=(2, 4, 8, 16, 32),
    optimizer="sgd",
    build=training_step,
)
