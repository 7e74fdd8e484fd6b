"""Transformer encoder for text classification, as in fine-tuning BERT (Devlin et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

CLASSES = 2
HEAD_WIDTH, BERT_HEAD_WIDTH = 32, 64
SEGMENTS = 2


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


class Bert(nn.Module):
    """BERT as published: segments, a norm of the embeddings, a pooler of the first token.

    109,483,778 parameters (base) and 335,143,938 (large) with its head for two classes, as
    Hugging Face's BertForSequenceClassification.
    """

    def __init__(self, width: int, depth: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(positions, width)
        self.segment = nn.Embedding(SEGMENTS, width)
        self.norm = nn.Sequential(nn.LayerNorm(width), nn.Dropout(0.1))
        layer = nn.TransformerEncoderLayer(
            width, width // BERT_HEAD_WIDTH, 4 * width, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) of one segment -> logits (B, CLASSES)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.token(tokens) + self.position(places)
        states = self.encoder(self.norm(embedded + self.segment(torch.zeros_like(tokens))))
        logits: Tensor = self.head(self.pooler(states[:, 0]))
        return logits


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, vocabulary: int, tokens: int,
    positions: int = 0,
) -> TrainingStep:  # fmt: skip
    """Classify texts, with :class:`Bert` if ``positions`` is set."""
    text = torch.randint(vocabulary, (batch_size, tokens))
    labels = torch.randint(CLASSES, (batch_size,))
    model: nn.Module
    if positions:
        model = Bert(width, depth, vocabulary, positions)
    else:
        model = TextClassifier(width, depth, vocabulary, tokens)
    return supervised(
        model,
        (text,),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=tokens,
    )


BASE = {"width": 768, "depth": 12, "vocabulary": 30_522, "positions": 512}
LARGE = {"width": 1024, "depth": 24, "vocabulary": 30_522, "positions": 512}

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
    large={
        "bert-base-t128": BASE | {"tokens": 128},
        "bert-base-t384": BASE | {"tokens": 384},
        "bert-large-t128": LARGE | {"tokens": 128},
    },
    large_batch_sizes=(2, 4, 8, 16, 32, 64),
)
