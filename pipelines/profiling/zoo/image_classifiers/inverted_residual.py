"""Inverted residuals (Sandler et al. 2018), shared by three families of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]
relu: Activation = partial(nn.ReLU, inplace=True)
relu6: Activation = partial(nn.ReLU6, inplace=True)
hardswish: Activation = partial(nn.Hardswish, inplace=True)
silu: Activation = partial(nn.SiLU, inplace=True)


def divisible(channels: float, divisor: int = 8) -> int:
    """Return the nearest multiple of ``divisor`` with at least 90 % of the channels."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest if nearest >= 0.9 * channels else nearest + divisor


def convolution(
    channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Return a convolution that keeps the side (unless strided), then batch norm."""
    return nn.Sequential(
        nn.Conv2d(
            channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(channels_out),
    )


class SqueezeExcitation(nn.Module):
    """Scales each channel by a function of all channels' means (Hu et al. 2017)."""

    def __init__(
        self, channels: int, squeezed: int, activation: Activation, gate: Activation
    ) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation(),
            nn.Conv2d(squeezed, channels, 1),
            gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same."""
        weights: Tensor = self.weigh(x)  # (B, channels, 1, 1)
        return x * weights


class StochasticDepth(nn.Module):
    """Drops a residual for some samples of a batch (Huang et al. 2016)."""

    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.keep_probability = 1 - dropped

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        if not self.training:
            return x
        mask = torch.empty_like(x[:, :1, :1, :1]).bernoulli_(self.keep_probability)
        return x * (mask / self.keep_probability)


class InvertedResidual(nn.Module):
    """1 x 1 convolution to ``hidden`` channels, depthwise convolution, 1 x 1 to the output."""

    def __init__(
        self,
        channels_in: int,
        hidden: int,
        channels_out: int,
        *,
        stride: int,
        kernel: int = 3,
        activation: Activation = relu6,
        squeeze: nn.Module | None = None,
        dropped: float = 0.0,
    ) -> None:
        super().__init__()
        self.has_shortcut = stride == 1 and channels_in == channels_out
        layers: list[nn.Module] = []
        if hidden != channels_in:
            layers += [convolution(channels_in, hidden, 1), activation()]
        layers += [convolution(hidden, hidden, kernel, stride, groups=hidden), activation()]
        if squeeze is not None:
            layers.append(squeeze)
        layers.append(convolution(hidden, channels_out, 1))
        if self.has_shortcut and dropped:
            layers.append(StochasticDepth(dropped))
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, H, W) -> (B, channels_out, H / stride, W / stride)."""
        out: Tensor = self.body(x)
        return x + out if self.has_shortcut else out
