"""Causal decoder-only transformer (Radford et al. 2019), with tied embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

HEAD_WIDTH = 32


class Block(nn.Module):
    """Self-attention, then an MLP, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, head_width: int = HEAD_WIDTH, *, is_causal: bool = True) -> None:
        super().__init__()
        self.head_width, self.is_causal = head_width, is_causal
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)."""
        mixed = self.query_key_value(self.attention_norm(x))  # (B, T, 3 * width)
        heads = mixed.unflatten(2, (3, -1, self.head_width)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)  # each (B, heads, T, head_width)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(x)
        return out


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and a decoder tied to the token embedding.

    The large variants at 1024 tokens have the parameters of OpenAI's GPT-2, 124,439,808 and
    354,823,168 (medium); XL has 1,557,611,200. With fewer tokens the unused positions are cut.
    """

    def __init__(
        self, width: int, depth: int, vocabulary: int, tokens: int, head_width: int
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, head_width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.token.weight, std=0.02)  # as GPT-2: it is also the decoder

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocabulary)."""
        states = self.norm(self.blocks(self.token(tokens) + self.position))
        return F.linear(states, self.token.weight)


def training_step(
    *, batch_size: int, optimizer: str, width: int, depth: int, vocabulary: int, tokens: int,
    head_width: int = HEAD_WIDTH,
) -> TrainingStep:  # fmt: skip
    """Next-token prediction."""
    text = torch.randint(vocabulary, (batch_size, tokens + 1))
    targets = text[:, 1:].flatten()
    return supervised(
        Gpt(width, depth, vocabulary, tokens, head_width),
        (text[:, :-1],),
        lambda logits: F.cross_entropy(logits.flatten(0, 1), targets),
        optimizer=optimizer,
        input_elements=tokens,
    )


GPT2 = {"vocabulary": 50_257, "head_width": 64}

FAMILY = Family(
    name="gpt",
    variants={
        "w64-d2-t64": {"width": 64, "depth": 2, "vocabulary": 256, "tokens": 64},
        "w128-d4-t128": {"width": 128, "depth": 4, "vocabulary": 256, "tokens": 128},
        "w256-d4-t64": {"width": 256, "depth": 4, "vocabulary": 4_000, "tokens": 64},
        "w128-d2-v32k": {"width": 128, "depth": 2, "vocabulary": 32_000, "tokens": 32},
    },
    batch_sizes=(1, 4, 8, 16),
    optimizer="adamw",
    build=training_step,
    large={
        "gpt2-t256": GPT2 | {"width": 768, "depth": 12, "tokens": 256},
        "gpt2-t1024": GPT2 | {"width": 768, "depth": 12, "tokens": 1024},
        "gpt2-medium-t1024": GPT2 | {"width": 1024, "depth": 24, "tokens": 1024},
        "gpt2-xl-t512": GPT2 | {"width": 1600, "depth": 48, "tokens": 512},
    },
    large_batch_sizes=(1, 2, 4, 8, 16, 32),
)
