"""Training: full-batch AdamW on pinball loss, all folds and seeds side by side, deterministic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from presage.features.errors import TrainingError
from presage.features.schema import FEATURE_SETS
from presage.models.interference_mlp import InterferenceMLP
from presage.models.quantile_mlp import QuantileMLP
from presage.models.stacked import Standardizer, pinball_loss

Array = np.ndarray[Any, np.dtype[np.float64]]
Progress = Callable[[int, int], None]

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Hyper-parameters, all from params.yaml."""

    hidden: int
    steps: int
    learning_rate: float
    weight_decay: float
    ensemble: int
    seed: int


def transform_features(features: Array, feature_set: str) -> Array:
    """Features of shape (rows, columns) as the networks see them: logarithms of scales.

    Columns past the set's own (solo forecasts) are scales and are taken to the logarithm.
    """
    offsets = log_offsets(feature_set, features.shape[-1])
    out: Array = np.where(
        np.isnan(offsets), features, np.log(np.maximum(features, 0) + np.nan_to_num(offsets, nan=1))
    )
    return out


def log_offsets(feature_set: str, n_columns: int) -> Array:
    """Offset per column, NaN where the column is used as it is."""
    offsets = [np.nan if c.log_offset is None else c.log_offset for c in FEATURE_SETS[feature_set]]
    offsets += [1e-6] * (n_columns - len(offsets))
    return np.array(offsets)


class ScalarStack(nn.Module):
    """Standardizer, network and the scale of the target, for every member of a stack."""

    def __init__(self, x: Tensor, y: Tensor, row_weights: Tensor, config: FitConfig) -> None:
        super().__init__()
        members, _, n_in = x.shape
        self.standardize = Standardizer(x, row_weights)
        self.net = QuantileMLP(members, n_in, hidden=config.hidden, levels=LEVELS)
        total = row_weights.sum(-1)
        mean = (row_weights * y).sum(-1) / total
        spread = ((row_weights * (y - mean[:, None]) ** 2).sum(-1) / total).sqrt()
        self.register_buffer("y_mean", mean[:, None, None])
        self.register_buffer("y_scale", spread.clamp_min(1e-3)[:, None, None])

    y_mean: Tensor
    y_scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(members, rows, columns) -> learnt quantiles (members, rows, levels)."""
        out: Tensor = self.net(self.standardize(x)) * self.y_scale + self.y_mean
        return out


class InterferenceStack(nn.Module):
    """Standardizer and interference network, for every member of a stack."""

    def __init__(self, members: Tensor, row_weights: Tensor, config: FitConfig) -> None:
        super().__init__()
        stack, colocations, size, n_in = members.shape
        flat = members.reshape(stack, colocations * size, n_in)
        self.standardize = Standardizer(flat, row_weights.reshape(stack, -1))
        self.net = InterferenceMLP(stack, n_in, hidden=config.hidden, levels=LEVELS)

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """(stack, C, K, G) and mask (C, K) -> log-slowdown quantiles (stack, C, K, levels)."""
        stack, colocations, size, n_in = members.shape
        flat = self.standardize(members.reshape(stack, colocations * size, n_in))
        out: Tensor = self.net(flat.reshape(stack, colocations, size, n_in), mask)
        return out


def fit_scalar(
    x: Array, y: Array, row_weights: Array, config: FitConfig, *, progress: Progress | None = None
) -> ScalarStack:
    """Fit a stack of quantile networks.

    Parameters
    ----------
    x : ndarray of shape (rows, columns) or (members, rows, columns)
        Transformed features, of all members or as each sees them.
    y : ndarray of shape (rows,) or (members, rows)
        What is learnt.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member: that is what makes a fold.

    Raises
    ------
    TrainingError
        A member sees fewer than two rows.
    """
    check_rows(row_weights)
    torch.manual_seed(config.seed)
    weights = torch.tensor(row_weights).float()
    xs = torch.tensor(x).float().expand(len(row_weights), -1, -1)
    ys = torch.tensor(y).float().expand(len(row_weights), -1)
    model = ScalarStack(xs, ys, weights, config)
    levels = torch.tensor(LEVELS)

    def loss() -> Tensor:
        # In units of the target's spread, so that one learning rate serves every target.
        per_row = pinball_loss(model(xs), ys, levels) / model.y_scale[:, :, 0]
        return _weighted_mean(per_row, weights)

    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, progress=progress,
    )  # fmt: skip
    return model


def fit_interference(
    members: Array,
    mask: Array,
    y: Array,
    row_weights: Array,
    config: FitConfig,
    *,
    progress: Progress | None = None,
) -> InterferenceStack:
    """Fit a stack of interference networks.

    Parameters
    ----------
    members : ndarray of shape (stack, colocations, size, columns)
        Transformed features of every member, padded, as each network of the stack sees them.
    mask : ndarray of shape (colocations, size)
        1 where there is a member.
    y : ndarray of shape (colocations, size)
        Measured log slowdowns, anything where there is none.
    row_weights : ndarray of shape (stack, colocations, size)
        0 hides a victim from a member of the stack.
    """
    check_rows(row_weights.reshape(len(row_weights), -1))
    torch.manual_seed(config.seed)
    weights = torch.tensor(row_weights).float()
    xs = torch.tensor(members).float()
    ys = torch.tensor(y).float().expand(len(row_weights), -1, -1)
    masks = torch.tensor(mask).float()
    model = InterferenceStack(xs, weights, config)
    levels = torch.tensor(LEVELS)

    def loss() -> Tensor:
        per_victim = pinball_loss(model(xs, masks), ys, levels)
        return _weighted_mean(per_victim.flatten(1), weights.flatten(1))

    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, progress=progress,
    )  # fmt: skip
    return model


def check_rows(row_weights: Array) -> None:
    """Refuse a stack of which a member sees fewer than two rows."""
    rows = (row_weights > 0).sum(axis=1)
    if rows.size == 0 or rows.min() < 2:
        raise TrainingError(
            f"a fold has {int(rows.min()) if rows.size else 0} training rows, needs at least 2; "
            "measure more jobs (`presage profile --budget ...`)"
        )


def _weighted_mean(per_row: Tensor, weights: Tensor) -> Tensor:
    """Sum over the stack of each member's own mean: members never touch one another."""
    return ((per_row * weights).sum(-1) / weights.sum(-1)).sum()


def minimize(
    model: nn.Module,
    loss: Callable[[], Tensor],
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float,
    progress: Progress | None,
) -> None:
    """AdamW that decays weights alone, warmed up and cooled down; ``loss`` is asked every step."""
    decayed = [p for name, p in model.named_parameters() if name.endswith("weight")]
    free = [p for name, p in model.named_parameters() if not name.endswith("weight")]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": free, "weight_decay": 0.0},
        ],
        lr=learning_rate,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=steps
    )
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
