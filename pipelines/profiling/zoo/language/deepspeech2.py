"""Speech recognition with convolutions over a spectrogram and recurrent layers (Amodei 2015).

The loss is a cross-entropy of every frame, not CTC: torch has no meta kernel of CTC's gradient, and
compared to 5 recurrent layers either is cheap.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

BINS = 161  # frequencies of a frame: 20 ms at 16 kHz
CHANNELS = 32
CHARACTERS = 29  # letters, apostrophe, space, blank


class RecurrentLayer(nn.Module):
    """Batch norm over frames and samples, then a GRU in both directions, which are summed."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width_in)
        self.gru = nn.GRU(width_in, width, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width_in) -> (B, T, width)."""
        states, _ = self.gru(self.norm(x.transpose(1, 2)).transpose(1, 2))  # (B, T, 2 * width)
        summed: Tensor = states.unflatten(2, (2, -1)).sum(dim=2)
        return summed


class DeepSpeech2(nn.Module):
    """Two convolutions that shrink time by 2 and frequency by 4, then recurrent layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, CHANNELS, (41, 11), stride=(2, 2), padding=(20, 5), bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(CHANNELS, CHANNELS, (21, 11), stride=(2, 1), padding=(10, 5), bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20, inplace=True),
        )
        widths = [CHANNELS * -(-BINS // 4)] + [width] * (depth - 1)
        self.recurrent = nn.Sequential(*(RecurrentLayer(before, width) for before in widths))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """(B, 1, BINS, T) -> logits of each remaining frame (B, T / 2, CHARACTERS)."""
        features = self.convolutions(spectrogram)  # (B, CHANNELS, BINS / 4, T / 2)
        states = self.recurrent(features.flatten(1, 2).transpose(1, 2))  # (B, T / 2, width)
        logits: Tensor = self.head(self.norm(states.transpose(1, 2)).transpose(1, 2))
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, frames: int
) -> TrainingStep:
    """Predict a character for every second frame of the spectrogram."""
    spectrogram = torch.randn(batch_size, 1, BINS, frames)
    labels = torch.randint(CHARACTERS, (batch_size * (frames // 2),))
    return supervised(
        DeepSpeech2(width, depth),
        (spectrogram,),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), labels),
        optimizer=optimizer,
        input_elements=BINS * frames,
    )


FAMILY = Family(
    name="deepspeech2",
    variants={
        "h32-d2-t64": {"width": 32, "depth": 2, "frames": 64},
        "h64-d3-t48": {"width": 64, "depth": 3, "frames": 48},
        "h128-d1-t100": {"width": 128, "depth": 1, "frames": 100},
    },
    batch_sizes=(1, 2, 4),
    optimizer="sgd",
    build=training_step,
    large={
        "h800-t200": {"width": 800, "depth": 5, "frames": 200},
        "h800-t800": {"width": 800, "depth": 5, "frames": 800},
    },
    large_batch_sizes=(4, 8, 16, 32, 64),
)
