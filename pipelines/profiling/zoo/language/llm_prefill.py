"""Serving of a Llama, prefill phase: a complete prompt in one pass that fills the caches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from presage.pipelines.profiling.running.training_step import INFERENCE, TrainingStep, inference
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.language.llama_model import SERVED, SIZES, KeyValueCache, Llama


class CachedLlama(nn.Module):
    """A Llama with caches of ``length`` tokens that processes the tokens from ``start`` on."""

    def __init__(self, model: Llama, length: int, start: int) -> None:
        super().__init__()
        self.model = model
        self.start = start
        self.caches = [KeyValueCache(length) for _ in model.blocks]

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits of the token after the last (B, vocabulary)."""
        states = self.model.states(tokens, self.caches, self.start)
        return self.model.logits(states[:, -1])


def require_inference(family: str, optimizer: str) -> None:
    """Raise a ValueError for a job with an optimizer."""
    if optimizer != INFERENCE:
        raise ValueError(
            f"family {family!r} is inference only, so it has no optimizer {optimizer!r}; "
            f"use {INFERENCE!r} instead"
        )


def inference_step(
    *, batch_size: int, optimizer: str, tokens: int, vocabulary: int, **sizes: int
) -> TrainingStep:
    """Generate the first token of a response to a prompt of ``tokens``."""
    require_inference("llm_prefill", optimizer)
    model = Llama(vocabulary=vocabulary, tokens=tokens, **sizes)
    prompt = torch.randint(vocabulary, (batch_size, tokens))
    return inference(CachedLlama(model, tokens, start=0), (prompt,), input_elements=tokens)


FAMILY = Family(
    name="llm_prefill",
    variants={
        "w128-d4-t256": {
            "vocabulary": 4_000, "width": 128, "depth": 4, "heads": 4, "kv_heads": 2,
            "mlp": 384, "tied": 1, "tokens": 256,
        },
        "w256-d4-t128": {
            "vocabulary": 8_000, "width": 256, "depth": 4, "heads": 8, "kv_heads": 2,
            "mlp": 768, "tied": 1, "tokens": 128,
        },
        "w512-d4-t64": {
            "vocabulary": 16_000, "width": 512, "depth": 4, "heads": 8, "kv_heads": 4,
            "mlp": 1536, "tied": 0, "tokens": 64,
        },
    },
    batch_sizes=(1, 4, 8),
    optimizer=INFERENCE,
    build=inference_step,
    large={
        "1b-t512": SIZES["1b"] | {"tokens": 512},
        "1b-t2048": SIZES["1b"] | {"tokens": 2048},
        "3b-t1024": SIZES["3b"] | {"tokens": 1024},
        "8b-t1024": SIZES["8b"] | {"tokens": 1024},
    },
    large_batch_sizes=(1, 4, 16),
    context="tokens",
    served=SERVED,
    large_served=SIZES,
)  # fmt: skip
