"""Training of sums of parts: AdamW on pinball loss in batches, all folds side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from presage.features.parts import Parts
from presage.models.conformal import Array
from presage.models.fit import LEVELS, Progress, check_rows, minimize
from presage.models.stacked import Standardizer, pinball_loss
from presage.models.sum_of_parts import SumOfParts


@dataclass(frozen=True, slots=True)
class PartsConfig:
    """Hyper-parameters."""

    hidden: int = 32
    steps: int = 2500
    batch: int = 128  # rows
    learning_rate: float = 5e-3
    weight_decay: float = 0.01
    seed: int = 0
    against: int = 0  # of SumOfParts


class PartsStack(nn.Module):
    """Standardizers and network, for every member of a stack."""

    def __init__(self, parts: Parts, units: int, row_weights: Tensor, config: PartsConfig) -> None:
        super().__init__()
        members = len(row_weights)
        rows, count, n_features = parts.features.shape
        there = torch.from_numpy(parts.base > 0).float()
        weights = (row_weights[:, :, None] * there).reshape(members, rows * count)
        features = _tensor(parts.features).reshape(1, rows * count, n_features)
        context = _tensor(parts.context)[None]
        self.of_parts = Standardizer(features.expand(members, -1, -1), weights)
        self.of_context = Standardizer(context.expand(members, -1, -1), row_weights)
        self.net = SumOfParts(
            members,
            units,
            n_features,
            context.shape[-1],
            hidden=config.hidden,
            levels=LEVELS,
            against=config.against,
        )

    def forward(self, units: Tensor, base: Tensor, features: Tensor, context: Tensor) -> Tensor:
        """Units and base (rows, parts), features (rows, parts, F), context (rows, C).

        Returns quantiles of the logarithm, of shape (members, rows, levels).
        """
        rows, count, n_features = features.shape
        flat = self.of_parts(features.reshape(1, rows * count, n_features))
        out: Tensor = self.net(
            units, base, flat.reshape(-1, rows, count, n_features), self.of_context(context[None])
        )
        return out


def fit_parts(
    parts: Parts,
    units: int,
    y: Array,
    row_weights: Array,
    config: PartsConfig,
    *,
    progress: Progress | None = None,
) -> PartsStack:
    """Fit a stack of sums of parts.

    Parameters
    ----------
    y : ndarray of shape (rows,)
        Logarithms of what the parts add up to, or of the ratio of two sums.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member: that is what makes a fold.

    Raises
    ------
    TrainingError
        A member sees fewer than two rows.
    """
    check_rows(row_weights)
    torch.manual_seed(config.seed)
    weights = _tensor(row_weights)
    model = PartsStack(parts, units, weights, config)
    target, levels = _tensor(y), torch.tensor(LEVELS)
    inputs = _inputs(parts)
    units_of, base = inputs[:2]
    off = target - model.net.total(units_of, base, torch.zeros_like(base))
    model.net.start_at((weights * off).sum(-1) / weights.sum(-1))
    order = np.random.default_rng(config.seed)
    batch = min(config.batch, len(y))

    def loss() -> Tensor:
        rows = torch.from_numpy(order.choice(len(y), batch, replace=False))
        known = target[rows].expand(len(weights), -1)
        per_row = pinball_loss(model(*(x[rows] for x in inputs)), known, levels)
        seen = weights[:, rows]
        return ((per_row * seen).sum(-1) / seen.sum(-1).clamp_min(1)).sum()

    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, progress=progress,
    )  # fmt: skip
    return model


def quantiles_of(model: PartsStack, parts: Parts, *, rows_at_once: int = 256) -> Array:
    """Quantiles of the logarithm, (members, rows, levels), for any number of rows."""
    inputs = _inputs(parts)
    with torch.no_grad():
        out = [
            model(*(x[start : start + rows_at_once] for x in inputs))
            for start in range(0, len(parts), rows_at_once)
        ]
    return torch.cat(out, dim=1).numpy().astype(np.float64)


def _inputs(parts: Parts) -> tuple[Tensor, ...]:
    units = torch.from_numpy(parts.units)
    return units, _tensor(parts.base), _tensor(parts.features), _tensor(parts.context)


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()
