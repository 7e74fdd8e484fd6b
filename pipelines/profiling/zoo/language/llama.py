"""Training of a Llama (Touvron et al. 2023), in the sizes of Llama 3.2 and below."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.language.llama_model import SIZES, Llama


def training_step(
    *, batch_size: int, optimizer: str, tokens: int, vocabulary: int, **sizes: int
) -> TrainingStep:
    """Predict the next token; ``sizes`` are those of :class:`Llama`."""
    model = Llama(vocabulary=vocabulary, tokens=tokens, **sizes)
    return next_token_step(model, vocabulary, tokens, batch_size=batch_size, optimizer=optimizer)


def next_token_step(
    model: nn.Module, vocabulary: int, tokens: int, *, batch_size: int, optimizer: str
) -> TrainingStep:
    """Return the step of a model from token ids (B, T) to logits (B, T, vocabulary)."""
    text = torch.randint(vocabulary, (batch_size, tokens + 1))
    targets = text[:, 1:].flatten()

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets)

    return supervised(model, (text[:, :-1],), loss, optimizer=optimizer, input_elements=tokens)


FAMILY = Family(
    name="llama",
    variants={
        "w64-d2-t64": {
            "vocabulary": 1_000, "width": 64, "depth": 2, "heads": 4, "kv_heads": 2,
            "mlp": 192, "tied": 1, "tokens": 64,
        },
        "w128-d4-t128": {
            "vocabulary": 1_000, "width": 128, "depth": 4, "heads": 4, "kv_heads": 1,
            "mlp": 512, "tied": 1, "tokens": 128,
        },
        "w256-d2-t32": {
            "vocabulary": 8_000, "width": 256, "depth": 2, "heads": 8, "kv_heads": 2,
            "mlp": 768, "tied": 0, "tokens": 32,
        },
        "w128-d2-v32k": {
            "vocabulary": 32_000, "width": 128, "depth": 2, "heads": 4, "kv_heads": 2,
            "mlp": 512, "tied": 1, "tokens": 32,
        },
    },
    batch_sizes=(1, 4, 8),
    optimizer="adamw",
    build=training_step,
    large={
        "160m-t1024": SIZES["160m"] | {"tokens": 1024},
        "1b-t512": SIZES["1b"] | {"tokens": 512},
        "1b-t2048": SIZES["1b"] | {"tokens": 2048},
    },
    large_batch_sizes=(1, 2, 4, 8, 16, 32),
)  # fmt: skip
