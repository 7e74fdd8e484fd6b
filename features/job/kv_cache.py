"""Size of the key-value cache of a decoder: exact, by its context length and batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class KvCache:
    """Key-value cache of a transformer that serves ``batch_size`` sequences of equal length.

    Attributes
    ----------
    layers : int
    kv_heads : int
        Heads of keys and values; fewer than those of queries with grouped-query attention.
    head_width : int
        Elements of one head.
    context : int
        Tokens of each sequence that the cache has room for.
    batch_size : int
    element_bytes : int
        Bytes of one element: 4 in fp32, 2 in half precision.
    """

    layers: int
    kv_heads: int
    head_width: int
    context: int
    batch_size: int
    element_bytes: int

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"KV cache: {field.name}={getattr(self, field.name)}, must be >= 1"
                )

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values in all layers."""
        return self.token_bytes * self.context * self.batch_size

    @property
    def token_bytes(self) -> int:
        """Bytes of one token of one sequence."""
        return 2 * self.layers * self.kv_heads * self.head_width * self.element_bytes

    def max_batch_size(self, free_bytes: float) -> int:
        """Return the number of sequences whose caches fit into ``free_bytes``; 0 if none does."""
        return max(0, math.floor(free_bytes / (self.token_bytes * self.context)))
