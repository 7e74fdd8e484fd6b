"""Encoder-decoder transformer for translation (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

HEAD_WIDTH = 32
VOCABULARY = 8_000  # shared sub-words of both languages


class TranslationModel(nn.Module):
    """``depth`` encoder and ``depth`` decoder layers; both sides share one embedding.

    With ``tied`` the head is that embedding too, as in the paper. The paper's base model with its
    37,000 sub-words has 63 M parameters ("65 M" in table 3), the big one 214 M ("213 M").
    """

    def __init__(
        self, width: int, depth: int, tokens: int, head_width: int, vocabulary: int, tied: bool
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        self.transformer = nn.Transformer(
            width, width // head_width, depth, depth, 4 * width, batch_first=True
        )
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            self.head.weight = self.token.weight
        mask = nn.Transformer.generate_square_subsequent_mask(tokens)
        self.register_buffer("causal_mask", mask, persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Token ids (B, T) of both languages -> logits of the next target token (B, T, V)."""
        # Without the hint torch compares the mask's values, which a meta tensor does not have.
        states = self.transformer(
            self.token(source) + self.position,
            self.token(target) + self.position,
            tgt_mask=self.causal_mask,
            tgt_is_causal=True,
        )
        logits: Tensor = self.head(states)
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, tokens: int,
    head_width: int = HEAD_WIDTH, vocabulary: int = VOCABULARY, tied: int = 0,
) -> TrainingStep:  # fmt: skip
    """Translate with teacher forcing; a sample is a source and a target of ``tokens`` each."""
    source = torch.randint(vocabulary, (batch_size, tokens))
    text = torch.randint(vocabulary, (batch_size, tokens + 1))
    labels = text[:, 1:].flatten()
    return supervised(
        TranslationModel(width, depth, tokens, head_width, vocabulary, bool(tied)),
        (source, text[:, :-1]),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), labels),
        optimizer=optimizer,
        input_elements=2 * tokens,
    )


BASE = {"width": 512, "depth": 6, "head_width": 64, "vocabulary": 9_521, "tied": 1}  # Multi30k
BIG = {"width": 1024, "depth": 6, "head_width": 64, "vocabulary": 32_000, "tied": 1}

FAMILY = Family(
    name="seq2seq_transformer",
    variants={
        "w64-d2-t32": {"width": 64, "depth": 2, "tokens": 32},
        "w128-d2-t32": {"width": 128, "depth": 2, "tokens": 32},
        "w256-d2-t16": {"width": 256, "depth": 2, "tokens": 16},
        "w64-d4-t64": {"width": 64, "depth": 4, "tokens": 64},
    },
    batch_sizes=(1, 4, 8, 16),
    optimizer="adam",
    build=training_step,
    large={
        "base-t32": BASE | {"tokens": 32},
        "base-t128": BASE | {"tokens": 128},
        "big-t128": BIG | {"tokens": 128},
    },
    large_batch_sizes=(8, 16, 32, 64, 128, 256),
)
