"""Transformer encoder that classifies a text, as BERT is fine-tuned (Devlin et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES = 2
HEAD_WIDTH = 32


class TextClassifier(nn.Module):
    """Token and position embeddings, encoder layers, mean over the text, one linear layer."""

    def __init__(self, width: int, depth: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, width // HEAD_WIDTH, 4 * width, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits (B, CLASSES)."""
        states = self.encoder(self.token(tokens) + self.position)  # (B, T, width)
        logits: Tensor = self.head(states.mean(dim=1))
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, vocabulary: int, tokens: int
) -> TrainingStep:
    """Text classification."""
    text = torch.randint(vocabulary, (batch_size, tokens))
    labels = torch.randint(CLASSES, (batch_size,))
    return supervised(
        TextClassifier(width, depth, vocabulary, tokens),
        (text,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=tokens,
    )


FAMILY = Family(
    name="transformer_encoder",
    variants={
        "w64-d2-t64": {"width": 64, "depth": 2, "vocabulary": 8_000, "tokens": 64},
        "w128-d4-t64": {"width": 128, "depth": 4, "vocabulary": 16_000, "tokens": 64},
        "w256-d2-t32": {"width": 256, "depth": 2, "vocabulary": 30_000, "tokens": 32},
        "w64-d2-t256": {"width": 64, "depth": 2, "vocabulary": 8_000, "tokens": 256},
    },
    batch_sizes=(1, 4, 16, 32),
    optimizer="adamw",
    build=training_step,
)
