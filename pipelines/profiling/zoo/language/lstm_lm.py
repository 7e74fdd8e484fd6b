"""LSTM language model (Zaremba et al. 2014), truncated at 35 tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

TOKENS = 35


class LstmLanguageModel(nn.Module):
    """Embedding, stacked LSTM, decoder over the complete vocabulary.

    "w200-d2-v33k" and "w650-d2-v33k" are the default and the medium model of PyTorch's
    word_language_model on Wikitext-2, untied (13,987,678 and 50,065,078 parameters);
    "w1500-d2-v10k" is Zaremba's large one on Penn Treebank (66 M).
    """

    def __init__(self, width: int, depth: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocabulary)."""
        states, _ = self.lstm(self.dropout(self.embedding(tokens)))  # (B, T, width)
        logits: Tensor = self.decoder(self.dropout(states))
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, vocabulary: int,
    dropout_percent: int = 0,
) -> TrainingStep:  # fmt: skip
    """Predict the next token."""
    text = torch.randint(vocabulary, (batch_size, TOKENS + 1))
    targets = text[:, 1:].flatten()
    return supervised(
        LstmLanguageModel(width, depth, vocabulary, dropout_percent / 100),
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
    large={
        "w200-d2-v33k": {
            "width": 200, "depth": 2, "vocabulary": 33_278, "dropout_percent": 20,
        },
        "w650-d2-v33k": {
            "width": 650, "depth": 2, "vocabulary": 33_278, "dropout_percent": 50,
        },
        "w1500-d2-v10k": {
            "width": 1500, "depth": 2, "vocabulary": 10_000, "dropout_percent": 65,
        },
    },
    large_batch_sizes=(5, 10, 20, 40, 80, 128),
)  # fmt: skip
