"""Blocks of parallel convolutions of Inception v3 (Szegedy et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Parallel(nn.Module):
    """Concatenation of several branches' outputs along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, the branches' channels, H', W')."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The paper's blocks, with its channels divided by ``narrowing``."""

    narrowing: int

    def convolution(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        padding: str | int = "same",
    ) -> nn.Sequential:
        """Convolution of the paper's channels, batch norm, ReLU."""
        before = channels_in if channels_in == 3 else channels_in // self.narrowing
        after = channels_out // self.narrowing
        return nn.Sequential(
            nn.Conv2d(before, after, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(after, eps=0.001),
            nn.ReLU(inplace=True),
        )

    def stem(self) -> nn.Sequential:
        """(B, 3, 299, 299) -> (B, 192, 35, 35)."""
        return nn.Sequential(
            self.convolution(3, 32, 3, stride=2, padding=0),
            self.convolution(32, 32, 3, padding=0),
            self.convolution(32, 64, 3),
            nn.MaxPool2d(3, 2),
            self.convolution(64, 80),
            self.convolution(80, 192, 3, padding=0),
            nn.MaxPool2d(3, 2),
        )

    def pooled(self, channels_in: int, channels_out: int) -> nn.Sequential:
        """Average pool that keeps the side, then 1 x 1."""
        return nn.Sequential(
            nn.AvgPool2d(3, 1, padding=1), self.convolution(channels_in, channels_out)
        )

    def square(self, channels: int, pool: int) -> Parallel:
        """Figure 5: the 5 x 5 in parallel with two 3 x 3; 224 + ``pool`` channels."""
        return Parallel(
            self.convolution(channels, 64),
            nn.Sequential(self.convolution(channels, 48), self.convolution(48, 64, 5)),
            nn.Sequential(
                self.convolution(channels, 64),
                self.convolution(64, 96, 3),
                self.convolution(96, 96, 3),
            ),
            self.pooled(channels, pool),
        )

    def first_halving(self) -> Parallel:
        """(B, 288, 35, 35) -> (B, 768, 17, 17)."""
        return Parallel(
            self.convolution(288, 384, 3, stride=2, padding=0),
            nn.Sequential(
                self.convolution(288, 64),
                self.convolution(64, 96, 3),
                self.convolution(96, 96, 3, stride=2, padding=0),
            ),
            nn.MaxPool2d(3, 2),
        )

    def factorized(self, narrow: int) -> Parallel:
        """Figure 6: 7 x 7 as 1 x 7 and 7 x 1; 768 channels in and out."""
        return Parallel(
            self.convolution(768, 192),
            nn.Sequential(
                self.convolution(768, narrow),
                self.convolution(narrow, narrow, (1, 7)),
                self.convolution(narrow, 192, (7, 1)),
            ),
            nn.Sequential(
                self.convolution(768, narrow),
                self.convolution(narrow, narrow, (7, 1)),
                self.convolution(narrow, narrow, (1, 7)),
                self.convolution(narrow, narrow, (7, 1)),
                self.convolution(narrow, 192, (1, 7)),
            ),
            self.pooled(768, 192),
        )

    def second_halving(self) -> Parallel:
        """(B, 768, 17, 17) -> (B, 1280, 8, 8)."""
        return Parallel(
            nn.Sequential(
                self.convolution(768, 192), self.convolution(192, 320, 3, stride=2, padding=0)
            ),
            nn.Sequential(
                self.convolution(768, 192),
                self.convolution(192, 192, (1, 7)),
                self.convolution(192, 192, (7, 1)),
                self.convolution(192, 192, 3, stride=2, padding=0),
            ),
            nn.MaxPool2d(3, 2),
        )

    def widened(self, channels: int) -> Parallel:
        """Figure 7: 1 x 3 in parallel with 3 x 1; 2048 channels out."""
        return Parallel(
            self.convolution(channels, 320),
            nn.Sequential(self.convolution(channels, 384), self._cross()),
            nn.Sequential(
                self.convolution(channels, 448), self.convolution(448, 384, 3), self._cross()
            ),
            self.pooled(channels, 192),
        )

    def _cross(self) -> Parallel:
        return Parallel(self.convolution(384, 384, (1, 3)), self.convolution(384, 384, (3, 1)))
