"""Llama's decoder (Touvron et al. 2023), shared by its training, fine-tuning and serving jobs.

RMS norm before each branch, rotary positions, grouped-query attention, an MLP gated by SiLU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROTARY_BASE = 500_000.0  # Llama 3

# As published, with 162,417,408, 1,235,814,400, 3,212,749,824 and 8,030,261,248 parameters.
SIZES: dict[str, dict[str, int]] = {
    "160m": {
        "vocabulary": 32_000, "width": 768, "depth": 12, "heads": 12, "kv_heads": 12,
        "mlp": 3072, "tied": 0,
    },  # Miao et al. 2023, SpecInfer
    "1b": {
        "vocabulary": 128_256, "width": 2048, "depth": 16, "heads": 32, "kv_heads": 8,
        "mlp": 8192, "tied": 1,
    },  # Llama 3.2
    "3b": {
        "vocabulary": 128_256, "width": 3072, "depth": 28, "heads": 24, "kv_heads": 8,
        "mlp": 8192, "tied": 1,
    },  # Llama 3.2
    "8b": {
        "vocabulary": 128_256, "width": 4096, "depth": 32, "heads": 32, "kv_heads": 8,
        "mlp": 14_336, "tied": 0,
    },  # Llama 3
}  # fmt: skip

# Attention with as many heads of keys as of queries, grouped-query and multi-query attention.
SERVED: dict[str, dict[str, int]] = {
    "w256-d4-k8": {
        "vocabulary": 8_000, "width": 256, "depth": 4, "heads": 8, "kv_heads": 8,
        "mlp": 768, "tied": 1,
    },
    "w384-d6-k2": {
        "vocabulary": 16_000, "width": 384, "depth": 6, "heads": 6, "kv_heads": 2,
        "mlp": 1024, "tied": 1,
    },
    "w512-d4-k1": {
        "vocabulary": 8_000, "width": 512, "depth": 4, "heads": 8, "kv_heads": 1,
        "mlp": 1536, "tied": 0,
    },
}  # fmt: skip


def check_sizes(*, width: int, depth: int, heads: int, kv_heads: int, tokens: int) -> None:
    """Raise a ValueError for sizes of which no decoder can be built."""
    for name, size in (
        ("width", width), ("depth", depth), ("heads", heads), ("kv_heads", kv_heads),
        ("tokens", tokens),
    ):  # fmt: skip
        if size < 1:
            raise ValueError(f"decoder: {name}={size}, must be >= 1")
    if heads % kv_heads:
        raise ValueError(
            f"decoder: kv_heads={kv_heads} does not divide heads={heads}; "
            "the heads of queries are divided equally among those of keys"
        )
    if width % (2 * heads):
        raise ValueError(
            f"decoder: width={width} is not a multiple of 2 x heads={heads}; "
            "rotary positions need heads of an even width"
        )


class KeyValueCache:
    """Keys and values of up to ``length`` tokens, in one layer.

    The first write allocates it, like an optimizer's state, because the model's data type is
    unknown before.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def write(self, key: Tensor, value: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Store (B, kv_heads, T, head width) from ``start`` on; return all entries to its end."""
        if self.keys is None or self.values is None:
            shape = (*key.shape[:2], self.length, key.shape[3])
            self.keys, self.values = key.new_zeros(shape), value.new_zeros(shape)
        end = start + key.shape[2]
        self.keys[:, :, start:end] = key
        self.values[:, :, start:end] = value
        return self.keys[:, :, :end], self.values[:, :, :end]


class Rotation(nn.Module):
    """Rotary position embedding (Su et al. 2021) of up to ``tokens`` positions."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, head_width: int, tokens: int) -> None:
        super().__init__()
        frequencies = ROTARY_BASE ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(tokens), frequencies).repeat(1, 2)  # (T, head_width)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """(B, heads, T, head_width) at positions from ``start`` on -> the same shape and type."""
        end = start + x.shape[2]
        left, right = x.chunk(2, dim=3)
        rotated = torch.cat([-right, left], dim=3)
        # Under autocast x is narrower than the tables, which must not widen the result.
        return x * self.cosines[start:end].to(x.dtype) + rotated * self.sines[start:end].to(x.dtype)


class Attention(nn.Module):
    """Causal attention in which ``heads / kv_heads`` queries share a key and a value."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Tensor, rotation: Rotation, cache: KeyValueCache | None, start: int
    ) -> Tensor:
        """(B, T, width) -> (B, T, width); more than one token must start at 0."""
        query = rotation(self._heads(self.query(x)), start)
        key, value = rotation(self._heads(self.key(x)), start), self._heads(self.value(x))
        if cache is not None:
            key, value = cache.write(key, value, start)
        attended = attend(query, key, value)
        out: Tensor = self.projection(attended.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_width).transpose(1, 2)  # (B, heads, T, D)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend by groups: (B, heads, T, D) and (B, kv_heads, S, D) -> (B, heads, T, D)."""
    groups = query.shape[1] // key.shape[1]
    if query.shape[2] == 1:
        # A single new token attends to every key. The heads of a group become rows of one
        # attention, so the cache is read once in place.
        rows = query.view(len(query), -1, groups, query.shape[3])  # (B, kv_heads, groups, D)
        return F.scaled_dot_product_attention(rows, key, value).flatten(1, 2).unsqueeze(2)
    if groups > 1:  # not enable_gqa, which has no fused kernel for fp32 on a GPU
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Block(nn.Module):
    """Attention, then the gated MLP, each after a norm and with a shortcut."""

    def __init__(self, width: int, heads: int, kv_heads: int, mlp: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, kv_heads)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, mlp, bias=False)
        self.up = nn.Linear(width, mlp, bias=False)
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(
        self, x: Tensor, rotation: Rotation, cache: KeyValueCache | None, start: int
    ) -> Tensor:
        """(B, T, width) -> (B, T, width)."""
        x = x + self.attention(self.attention_norm(x), rotation, cache, start)
        normed = self.mlp_norm(x)
        out: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return out


class Llama(nn.Module):
    """Embedding, blocks, norm, head; with ``tied`` the head is the embedding."""

    def __init__(
        self, *, vocabulary: int, width: int, depth: int, heads: int, kv_heads: int, mlp: int,
        tied: int, tokens: int,
    ) -> None:  # fmt: skip
        super().__init__()
        check_sizes(width=width, depth=depth, heads=heads, kv_heads=kv_heads, tokens=tokens)
        self.token = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.token.weight, std=0.02)
        self.rotation = Rotation(width // heads, tokens)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, mlp) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)

    def states(
        self, tokens: Tensor, caches: Sequence[KeyValueCache] = (), start: int = 0
    ) -> Tensor:
        """Token ids (B, T), the first at position ``start`` -> (B, T, width)."""
        x = self.token(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.rotation, caches[layer] if caches else None, start)
        normed: Tensor = self.norm(x)
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """(..., width) -> (..., vocabulary)."""
        return F.linear(states, self.token.weight if self.head is None else self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (B, T) -> logits of the next token (B, T, vocabulary)."""
        return self.logits(self.states(tokens))
