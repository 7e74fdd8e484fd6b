"""Serving of a Llama, decode phase: token by token, with cached keys and values."""

from __future__ import annotations

import torch

from presage.pipelines.profiling.running.training_step import INFERENCE, TrainingStep, inference
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.language.llama_model import SERVED, SIZES, Llama
from presage.pipelines.profiling.zoo.language.llm_prefill import CachedLlama, require_inference


def inference_step(
    *, batch_size: int, optimizer: str, context: int, vocabulary: int, **sizes: int
) -> TrainingStep:
    """Generate one more token for every sequence, which is then ``context`` long.

    Every step overwrites the last entry of the caches, so that all steps cost the same.
    """
    require_inference("llm_decode", optimizer)
    model = Llama(vocabulary=vocabulary, tokens=context, **sizes)
    latest = torch.randint(vocabulary, (batch_size, 1))
    return inference(CachedLlama(model, context, start=context - 1), (latest,), input_elements=1)


FAMILY = Family(
    name="llm_decode",
    variants={
        "w256-d4-c128": {
            "vocabulary": 8_000, "width": 256, "depth": 4, "heads": 8, "kv_heads": 2,
            "mlp": 768, "tied": 1, "context": 128,
        },
        "w256-d4-c1024": {
            "vocabulary": 8_000, "width": 256, "depth": 4, "heads": 8, "kv_heads": 8,
            "mlp": 768, "tied": 1, "context": 1024,
        },
        "w512-d8-c256": {
            "vocabulary": 32_000, "width": 512, "depth": 8, "heads": 8, "kv_heads": 4,
            "mlp": 1536, "tied": 0, "context": 256,
        },
    },
    batch_sizes=(1, 8, 32),
    optimizer=INFERENCE,
    build=inference_step,
    large={
        "1b-c1024": SIZES["1b"] | {"context": 1024},
        "1b-c4096": SIZES["1b"] | {"context": 4096},
        "3b-c1024": SIZES["3b"] | {"context": 1024},
        "8b-c1024": SIZES["8b"] | {"context": 1024},
    },
    large_batch_sizes=(1, 8, 32, 128),
    context="context",
    served=SERVED,
    large_served=SIZES,
)  # fmt: skip
