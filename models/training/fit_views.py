"""Training of quantile networks of which each member sees other features of the same rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.networks.stacked import Standardizer, pinball_loss
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    Progress,
    check_training_rows,
    minimize,
    sum_of_member_means,
)
from presage.system.arrays import Array


def fit_views(
    x: Array, y: Array, row_weights: Array, config: FitConfig, *, progress: Progress | None = None
) -> Array:
    """Quantiles of every row by every member, shape (members, rows, levels).

    Parameters
    ----------
    x : ndarray of shape (members, rows, columns)
        Features as each member sees them: what is estimated from rows that it may see.
    y : ndarray of shape (members, rows)
        What is learnt; of rows that a member may not see, any number.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member: that is what makes a fold.

    Raises
    ------
    TrainingError
        A member sees fewer than two rows.
    """
    check_training_rows(row_weights)
    torch.manual_seed(config.seed)
    xs, ys, weights = (torch.from_numpy(np.asarray(one)).float() for one in (x, y, row_weights))
    xs = Standardizer(xs, weights)(xs)
    members, rows, columns = xs.shape
    net = QuantileMLP(members, columns, hidden=config.hidden, levels=LEVELS)
    no_effect, levels = torch.zeros(config.hidden + 1), torch.tensor(LEVELS)
    mean = (weights * ys).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
    off = (weights * (ys - mean).abs()).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
    scale = off.clamp_min(1e-3)
    target, order = (ys - mean) / scale, np.random.default_rng(config.seed)

    def loss() -> Tensor:
        at = torch.from_numpy(order.choice(rows, min(config.batch, rows), replace=False))
        per_row = pinball_loss(net(xs[:, at], no_effect), target[:, at], levels)
        return sum_of_member_means(per_row, weights[:, at])

    minimize(
        net, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, progress=progress,
    )  # fmt: skip
    with torch.no_grad():
        out: Array = (net(xs, no_effect) * scale[:, :, None] + mean[:, :, None]).numpy()
    return out.astype(np.float64)
