"""Fine-tuning of a frozen Llama with low-rank adapters (Hu et al. 2021) on queries and values."""

from __future__ import annotations

from torch import Tensor, nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.language.llama import next_token_step
from presage.pipelines.profiling.zoo.language.llama_model import SIZES, Llama

ALPHA = 16  # an adapter's output is scaled by ALPHA / rank


class LoraLinear(nn.Module):
    """An unchanged linear layer plus a trained product of two thin matrices."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # training starts at the frozen model
        self.scale = ALPHA / rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = self.frozen(x) + self.scale * self.up(self.down(x))
        return out


def add_adapters(model: Llama, rank: int) -> None:
    """Freeze ``model``, then add adapters of ``rank`` to its queries and values."""
    model.requires_grad_(False)
    for block in model.blocks:
        attention = block.get_submodule("attention")
        for name in ("query", "value"):
            frozen = attention.get_submodule(name)
            assert isinstance(frozen, nn.Linear)
            setattr(attention, name, LoraLinear(frozen, rank))


def training_step(
    *, batch_size: int, optimizer: str, tokens: int, vocabulary: int, rank: int, **sizes: int
) -> TrainingStep:
    """Predict the next token; the optimizer skips frozen weights, which have no gradient."""
    model = Llama(vocabulary=vocabulary, tokens=tokens, **sizes)
    add_adapters(model, rank)
    return next_token_step(model, vocabulary, tokens, batch_size=batch_size, optimizer=optimizer)


FAMILY = Family(
    name="lora",
    variants={
        "w128-d4-r4-t64": {
            "vocabulary": 4_000, "width": 128, "depth": 4, "heads": 4, "kv_heads": 2,
            "mlp": 384, "tied": 1, "rank": 4, "tokens": 64,
        },
        "w256-d4-r8-t32": {
            "vocabulary": 8_000, "width": 256, "depth": 4, "heads": 8, "kv_heads": 2,
            "mlp": 768, "tied": 1, "rank": 8, "tokens": 32,
        },
        "w512-d2-r16-t32": {
            "vocabulary": 16_000, "width": 512, "depth": 2, "heads": 8, "kv_heads": 2,
            "mlp": 1536, "tied": 0, "rank": 16, "tokens": 32,
        },
    },
    batch_sizes=(1, 4, 8),
    optimizer="adamw",
    build=training_step,
    large={
        "1b-r16-t512": SIZES["1b"] | {"rank": 16, "tokens": 512},
        "3b-r16-t512": SIZES["3b"] | {"rank": 16, "tokens": 512},
        "8b-r16-t512": SIZES["8b"] | {"rank": 16, "tokens": 512},
    },
    large_batch_sizes=(1, 2, 4, 8, 16),
)  # fmt: skip
