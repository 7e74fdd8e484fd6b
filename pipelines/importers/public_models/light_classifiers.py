"""SqueezeNet, ShuffleNet V2 and MNASNet as published, in torchvision's sizes.

Iandola et al., SqueezeNet, 2016; Ma et al., ShuffleNet V2, ECCV 2018; Tan et al., MnasNet, CVPR
2019 (model B1). All classify images of 224 x 224 into 1000 classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from presage.pipelines.profiling.zoo.image_classifiers.inverted_residual import (
    InvertedResidual,
    convolution,
    divisible,
    relu,
)

CLASSES = 1000


class Fire(nn.Module):
    """1 x 1 convolution to few channels, then 1 x 1 and 3 x 3 convolutions in parallel."""

    def __init__(self, channels: int, squeezed: int, widened: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(channels, squeezed, 1), relu())
        self.point = nn.Sequential(nn.Conv2d(squeezed, widened, 1), relu())
        self.square = nn.Sequential(nn.Conv2d(squeezed, widened, 3, padding=1), relu())

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, 2 widened, H, W)."""
        squeezed = self.squeeze(x)
        return torch.cat([self.point(squeezed), self.square(squeezed)], dim=1)


# Squeezed and widened channels of the eight modules: table 1 of the paper.
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def squeezenet(version: str) -> nn.Sequential:
    """Return version "1.0", the paper's, or "1.1" with a smaller stem and earlier pools."""
    channels, kernel, pooled = (96, 7, (3, 7)) if version == "1.0" else (64, 3, (2, 4))
    layers: list[nn.Module] = [nn.Conv2d(3, channels, kernel, stride=2), relu(), _pool()]
    for position, (squeezed, widened) in enumerate(FIRES):
        if position in pooled:
            layers.append(_pool())
        layers.append(Fire(channels, squeezed, widened))
        channels = 2 * widened
    classes = [nn.Dropout(0.5), nn.Conv2d(channels, CLASSES, 1), relu()]
    return nn.Sequential(*layers, *classes, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


class ShuffleUnit(nn.Module):
    """Half of the channels skip the filters (not with a stride), then all are shuffled."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        half, self.splits = channels_out // 2, stride == 1
        filtered = half if self.splits else channels_in
        self.passing = nn.Sequential() if self.splits else nn.Sequential(
            convolution(filtered, filtered, 3, stride, groups=filtered),
            convolution(filtered, half, 1), relu(),
        )  # fmt: skip
        self.filtering = nn.Sequential(
            convolution(filtered, half, 1), relu(),
            convolution(half, half, 3, stride, groups=half),
            convolution(half, half, 1), relu(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels_out, H / stride, W / stride)."""
        left, right = x.chunk(2, dim=1) if self.splits else (x, x)
        both = torch.cat([self.passing(left), self.filtering(right)], dim=1)
        batch, channels, *sides = both.shape
        pairs = both.view(batch, 2, channels // 2, *sides).transpose(1, 2)
        return pairs.reshape(batch, channels, *sides)  # which copies


# Stem, three stages and head by the multiple of the width: table 5 of the paper.
SHUFFLE_CHANNELS = {
    0.5: (24, 48, 96, 192, 1024),
    1.0: (24, 116, 232, 464, 1024),
    1.5: (24, 176, 352, 704, 1024),
    2.0: (24, 244, 488, 976, 2048),
}
SHUFFLE_UNITS = (4, 8, 4)


def shufflenet_v2(width: float) -> nn.Sequential:
    """Return ShuffleNet V2 with 0.5, 1, 1.5 or 2 times the width."""
    channels, *stages, head = SHUFFLE_CHANNELS[width]
    layers: list[nn.Module] = [
        convolution(3, channels, 3, 2), relu(), nn.MaxPool2d(3, stride=2, padding=1)
    ]  # fmt: skip
    for out, units in zip(stages, SHUFFLE_UNITS, strict=True):
        for unit in range(units):
            layers.append(ShuffleUnit(channels, out, stride=2 if unit == 0 else 1))
            channels = out
    layers += [convolution(channels, head, 1), relu()]
    return nn.Sequential(*layers, *_head(head))


# Expansion, channels, blocks, kernel, stride of the first: figure 7 of the paper.
MNAS_STAGES = (
    (3, 24, 3, 3, 2),
    (3, 40, 3, 5, 2),
    (6, 80, 3, 5, 2),
    (6, 96, 2, 3, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
MNAS_HEAD = 1280


def mnasnet(width: float) -> nn.Sequential:
    """Return MNASNet with 0.5, 0.75, 1 or 1.3 times the width."""
    stem, channels = divisible(32 * width), divisible(16 * width)
    layers: list[nn.Module] = [
        convolution(3, stem, 3, 2), relu(),
        convolution(stem, stem, 3, groups=stem), relu(),
        convolution(stem, channels, 1),
    ]  # fmt: skip
    for expansion, full, blocks, kernel, first in MNAS_STAGES:
        out = divisible(full * width)
        for block in range(blocks):
            layers.append(
                InvertedResidual(
                    channels, expansion * channels, out, stride=first if block == 0 else 1,
                    kernel=kernel, activation=relu,
                )
            )  # fmt: skip
            channels = out
    layers += [convolution(channels, MNAS_HEAD, 1), relu()]
    return nn.Sequential(*layers, *_head(MNAS_HEAD, dropped=0.2))


def _head(channels: int, dropped: float = 0.0) -> list[nn.Module]:
    dropout: list[nn.Module] = [nn.Dropout(dropped, inplace=True)] if dropped else []
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dropout, nn.Linear(channels, CLASSES)]
