"""U-Net for segmentation (Ronneberger et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES = 4


def double_convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    """Two 3 x 3 convolutions that keep the side."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """``depth`` halvings of the side and back, with a skip connection at each level."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double_convolution(before, after)
            for before, after in zip([3, *widths], widths, strict=False)
        )
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]  # (deeper, shallower)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(deep, out, 2, 2) for deep, out in pairs)
        self.up = nn.ModuleList(double_convolution(2 * out, out) for _, out in pairs)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> logits of each pixel (B, CLASSES, H, W)."""
        skips: list[Tensor] = []
        for level, convolve in enumerate(self.down):
            x = convolve(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()  # the deepest level has no skip connection
        for rise, convolve in zip(self.rise, self.up, strict=True):
            x = convolve(torch.cat([skips.pop(), rise(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, side: int
) -> TrainingStep:
    """Classify every pixel."""
    images = torch.randn(batch_size, 3, side, side)
    labels = torch.randint(CLASSES, (batch_size, side, side))
    return supervised(
        UNet(width, depth),
        (images,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=3 * side * side,
    )


FAMILY = Family(
    name="unet",
    variants={
        "w8-d2-s32": {"width": 8, "depth": 2, "side": 32},
        "w8-d3-s64": {"width": 8, "depth": 3, "side": 64},
        "w16-d3-s64": {"width": 16, "depth": 3, "side": 64},
        "w8-d4-s128": {"width": 8, "depth": 4, "side": 128},
        "w32-d2-s32": {"width": 32, "depth": 2, "side": 32},
    },
    batch_sizes=(1, 4, 8),
    large={
        "w32-d4-s512": {"width": 32, "depth": 4, "side": 512},
        "w64-d4-s256": {"width": 64, "depth": 4, "side": 256},
    },
    large_batch_sizes=(1, 4, 8, 16, 32, 64),
    optimizer="adam",
    build=training_step,
)
