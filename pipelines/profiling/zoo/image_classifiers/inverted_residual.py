"""Inverted residuals (Sandler et al. 2018), which three families of the zoo are made of."""

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
    """The nearest multiple of ``divisor``, but none that loses over a tenth of the channels."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest if nearest >= 0.9 * channels else nearest + divisor


def convolution(
    channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution that keeps the side (unless strided), then batch norm."""
    return nn.Sequential(
        nn.Conv2d(
            channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(channels_out),
    )


class SqueezeExcitation(nn.Module):
    """Weighs each channel by what all of them are on average (Hu et al. 2017)."""

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
    """Leaves a residual out of some samples of a batch (Huang et al. 2016)."""

    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.kept = 1 - dropped

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        if not self.training:
            return x
        kept = torch.empty_like(x[:, :1, :1, :1]).bernoulli_(self.kept)
        return x * (kept / self.kept)


class InvertedResidual(nn.Module):
    """Widen to ``hidden`` by 1 x 1, filter each channel by itself, narrow by 1 x 1."""

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
