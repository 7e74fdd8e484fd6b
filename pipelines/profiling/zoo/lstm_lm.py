"""LSTM language model (Zaremba et al. 2014), truncated at 35 tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

TOKENS = 35


class LstmLanguageModel(nn.Module):
    """Embedding, stacked LSTM, decoder over the whole vocabulary."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocabulary)."""
        states, _ = self.lstm(self.embedding(tokens))  # (B, T, width)
        logits: Tensor = self.decoder(states)
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, vocabulary: int
) -> TrainingStep:
    """Next-token prediction."""
    text = torch.randint(vocabulary, (batch_size, TOKENS + 1))
    targets = text[:, 1:].flatten()
    return supervised(
        LstmLanguageModel(width, depth, vocabulary),
        (text[:, :-1],),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), targets),
        optimizer=optimizer,
        input_elements=TOKENS,
    )


FAMILY = Family(
    name="lstm_lm",
    variants={
        "w64-d1-v2k": {"width": 64, "depth": 1, "vocabulary": 2_000},
        "w128-d2-v10k": {"width": 128, "depth": 2, "vocabulary": 10_000},
        "w200-d2-v10k": {"width": 200, "depth": 2, "vocabulary": 10_000},
        "w400-d1-v5k": {"width": 400, "depth": 1, "vocabulary": 5_000},
        "w64-d1-v33k": {"width": 64, "depth": 1, "vocabulary": 33_000},
    },
    batch_sizes=(1, 4, 16),
    optimizer="sgd",
    build=training_step,
)
