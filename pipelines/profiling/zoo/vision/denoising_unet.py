"""U-Net of denoising diffusion (Ho et al. 2020, appendix B).

Residual blocks with time embeddings, and self-attention where the image is small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 32
DROPOUT = 0.1
SLOWEST = 10_000.0  # wavelength of the time's embedding


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions plus a shortcut; the time embedding is added between them."""

    def __init__(self, channels_in: int, channels_out: int, time_width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(GROUPS, channels_in),
            nn.SiLU(),
            nn.Conv2d(channels_in, channels_out, 3, padding=1),
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time_width, channels_out))
        self.second = nn.Sequential(
            nn.GroupNorm(GROUPS, channels_out),
            nn.SiLU(),
            nn.Dropout(DROPOUT),
            nn.Conv2d(channels_out, channels_out, 3, padding=1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(B, channels_in, H, W) and (B, time_width) -> (B, channels_out, H, W)."""
        hidden = self.first(x) + self.time(time)[:, :, None, None]
        out: Tensor = self.shortcut(x) + self.second(hidden)
        return out


class PixelAttention(nn.Module):
    """Every pixel attends to every other with one head, plus a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.query_key_value = nn.Conv2d(channels, 3 * channels, 1)
        self.projection = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same shape."""
        mixed = self.query_key_value(self.norm(x)).flatten(2).unflatten(1, (3, 1, -1))
        query, key, value = mixed.transpose(3, 4).unbind(1)  # each (B, 1, H * W, channels)
        attended = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = x + self.projection(attended.squeeze(1).transpose(1, 2).view_as(x))
        return out


class Stage(nn.Module):
    """A residual block, followed by attention if the image is small enough."""

    def __init__(self, channels_in: int, channels_out: int, time_width: int, attend: bool) -> None:
        super().__init__()
        self.residual = ResidualBlock(channels_in, channels_out, time_width)
        self.attention = PixelAttention(channels_out) if attend else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(B, channels_in, H, W) and (B, time_width) -> (B, channels_out, H, W)."""
        out: Tensor = self.attention(self.residual(x, time))
        return out


class DenoisingUNet(nn.Module):
    """Predicts the noise in an image.

    Parameters
    ----------
    width : int
        Channels at the full side.
    multipliers : int
        Widening of each level, one decimal digit each: 1222 is four levels, with three halvings.
    blocks : int
        Residual blocks of a level on the way down; one more on the way up.
    attention_side : int
        The level with this side has attention, as has the deepest one in between.
    """

    def __init__(
        self, *, width: int, multipliers: int, blocks: int, attention_side: int, side: int,
        channels: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width = width
        time_width = 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        widths = [width * int(digit) for digit in str(multipliers)]
        attends = [side >> level == attention_side for level in range(len(widths))]
        skips = [width]  # channels of the skip connections
        now = width
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, (after, attend) in enumerate(zip(widths, attends, strict=True)):
            for _ in range(blocks):
                self.down.append(Stage(now, after, time_width, attend))
                skips.append(now := after)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(now, now, 3, stride=2, padding=1))
                skips.append(now)
        self.middle = nn.ModuleList(Stage(now, now, time_width, attend) for attend in (True, False))
        for level, (after, attend) in reversed(list(enumerate(zip(widths, attends, strict=True)))):
            for _ in range(blocks + 1):
                self.up.append(Stage(now + skips.pop(), after, time_width, attend))
                now = after
            if level > 0:
                self.up.append(
                    nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(now, now, 3, padding=1))
                )
        self.head = nn.Sequential(
            nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, channels, 3, padding=1)
        )

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """(B, channels, side, side) at times (B,) -> the same shape."""
        time = self.time(embed_time(times, self.width))
        skips = [x := self.stem(x)]
        for step in self.down:
            x = step(x, time) if isinstance(step, Stage) else step(x)
            skips.append(x)
        for step in self.middle:
            x = step(x, time)
        for step in self.up:
            if isinstance(step, Stage):
                x = step(torch.cat([x, skips.pop()], dim=1), time)
            else:
                x = step(x)
        out: Tensor = self.head(x)
        return out


def embed_time(times: Tensor, width: int) -> Tensor:
    """Return sines and cosines (B, width) of times (B,)."""
    half = width // 2
    exponents = torch.arange(half, device=times.device) / (half - 1)
    angles = torch.outer(times.float(), torch.exp(-math.log(SLOWEST) * exponents))
    return torch.cat([angles.sin(), angles.cos()], dim=1)
