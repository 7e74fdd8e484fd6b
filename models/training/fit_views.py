"""Training of quantile networks whose members have different features of the same rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from presage.models.networks.quantile_mlp import QuantileMLP
from presage.models.networks.stacked import Standardizer, pinball_loss
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    check_training_rows,
    minimize,
    sum_of_member_means,
)
from presage.system.arrays import Array
from presage.system.text.progress import Progress


def fit_views(
    x: Array, y: Array, row_weights: Array, config: FitConfig, *, progress: Progress | None = None
) -> Array:
    """Fit a network per member; return quantiles of every row, shape (members, rows, levels).

    Parameters
    ----------
    x : ndarray of shape (members, rows, columns)
        Features of each member, estimated from the rows that it may use.
    y : ndarray of shape (members, rows)
        Target; any number for rows hidden from a member.
    row_weights : ndarray of shape (members, rows)
        0 hides a row from a member, which defines the folds.
    config : FitConfig
    progress : callable, optional

    Raises
    ------
    TrainingError
        A member has fewer than two rows.
    """
    check_training_rows(row_weights)
    torch.manual_seed(config.seed)
    xs, ys, weights = (torch.from_numpy(np.asarray(array)).float() for array in (x, y, row_weights))
    xs = Standardizer(xs, weights)(xs)
    members, rows, columns = xs.shape
    net = QuantileMLP(members, columns, hidden=config.hidden, levels=LEVELS)
    no_effect, levels = torch.zeros(config.hidden + 1), torch.tensor(LEVELS)
    mean = (weights * ys).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
    deviation = (weights * (ys - mean).abs()).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
    scale = deviation.clamp_min(1e-3)
    target, order = (ys - mean) / scale, np.random.default_rng(config.seed)

    def loss() -> Tensor:
        batch = torch.from_numpy(order.choice(rows, min(config.batch, rows), replace=False))
        per_row = pinball_loss(net(xs[:, batch], no_effect), target[:, batch], levels)
        return sum_of_member_means(per_row, weights[:, batch])

    minimize(
        net, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, progress=progress,
    )  # fmt: skip
    with torch.no_grad():
        out: Array = (net(xs, no_effect) * scale[:, :, None] + mean[:, :, None]).numpy()
    return out.astype(np.float64)
