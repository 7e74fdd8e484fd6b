"""Encoder-decoder transformer for translation (Vaswani et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

HEAD_WIDTH = 32
VOCABULARY = 8_000  # shared sub-words of both languages


class TranslationModel(nn.Module):
    """``depth`` encoder and as many decoder layers; both sides share one embedding."""

    def __init__(self, width: int, depth: int, tokens: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        self.transformer = nn.Transformer(
            width, width // HEAD_WIDTH, depth, depth, 4 * width, batch_first=True
        )
        self.head = nn.Linear(width, VOCABULARY)
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
    *, batch_size: int, optimizer: str, width: int, depth: int, tokens: int
) -> TrainingStep:
    """Translation with teacher forcing; a sample is a source and a target of ``tokens`` each."""
    source = torch.randint(VOCABULARY, (batch_size, tokens))
    text = torch.randint(VOCABULARY, (batch_size, tokens + 1))
    labels = text[:, 1:].flatten()
    return supervised(
        TranslationModel(width, depth, tokens),
        (source, text[:, :-1]),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), labels),
        optimizer=optimizer,
        input_elements=2 * tokens,
    )


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
)
