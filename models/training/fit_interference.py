"""Training of interference networks: AdamW on pinball loss in batches, all folds at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from presage.models.networks.interference_mlp import InterferenceMLP
from presage.models.networks.stacked import Standardizer, pinball_loss
from presage.models.training.fit import (
    LEVELS,
    FitConfig,
    check_training_rows,
    copy_stack,
    minimize,
    sum_of_member_means,
)
from presage.models.training.loss_curves import Observe, observed_rows, observing
from presage.system.arrays import Array
from presage.system.text.progress import Progress


class InterferenceStack(nn.Module):
    """Standardizer and interference network, for every member of a stack.

    The names of parameters and buffers are keys of the networks' files.
    """

    def __init__(self, members: Tensor, row_weights: Tensor, config: FitConfig) -> None:
        super().__init__()
        stack, colocations, size, n_in = members.shape
        flat = members.reshape(stack, colocations * size, n_in)
        self.standardize = Standardizer(flat, row_weights.reshape(stack, -1))
        self.net = InterferenceMLP(stack, n_in, hidden=config.hidden, levels=LEVELS)

    def forward(self, members: Tensor, count: Tensor, jitter: float = 0.0) -> Tensor:
        """Return log-slowdown quantiles (stack, C, K, levels).

        ``members`` has the shape (stack, C, K, G) and ``count`` the shape (C, K).
        """
        stack, colocations, size, n_in = members.shape
        flat = self.standardize(members.reshape(stack, colocations * size, n_in))
        if jitter:
            flat = flat + jitter * torch.randn_like(flat)
        out: Tensor = self.net(flat.reshape(stack, colocations, size, n_in), count)
        return out


def fit_interference(
    members: Array,
    count: Array,
    y: Array,
    row_weights: Array,
    config: FitConfig,
    *,
    start: InterferenceStack | None = None,
    progress: Progress | None = None,
    observe: Observe | None = None,
) -> InterferenceStack:
    """Fit a stack of interference networks, from scratch or by fine-tuning others.

    Parameters
    ----------
    members : ndarray of shape (stack or 1, colocations, size, columns)
        Padded, transformed features of every member, for each network of the stack.
    count : ndarray of shape (colocations, size)
        Number of identical members at each place: usually 1, 0 for padding.
    y : ndarray of shape (colocations, size)
        Measured log slowdowns; any number where there is none.
    row_weights : ndarray of shape (stack, colocations, size)
        0 hides a victim from a member of the stack.
    config : FitConfig
    start : InterferenceStack, optional
        Networks to fine-tune, as in :func:`presage.models.training.fit.fit_scalar`.
    progress : callable, optional
    observe : callable, optional
        As in :func:`presage.models.training.fit.fit_scalar`, of the victims of
        :func:`~presage.models.training.loss_curves.observed_rows` of the co-locations.

    Raises
    ------
    TrainingError
        A member of the stack that is trained from scratch has fewer than two victims.
    """
    if start is None:
        check_training_rows(row_weights.reshape(len(row_weights), -1))
    torch.manual_seed(config.seed)
    weights, counts = torch.tensor(row_weights).float(), torch.tensor(count).float()
    xs = torch.tensor(members).float().expand(len(weights), -1, -1, -1)
    ys = torch.tensor(y).float()
    model = (
        InterferenceStack(xs, weights, config) if start is None else copy_stack(start, len(weights))
    )
    order, batch = np.random.default_rng(config.seed), min(config.batch, len(counts))
    levels = torch.tensor(LEVELS)

    def loss() -> Tensor:
        chosen = torch.from_numpy(order.choice(len(counts), batch, replace=False))
        return sum_of_member_means(per_victim(chosen, config.jitter), weights[:, chosen].flatten(1))

    def per_victim(at: Tensor, jitter: float = 0.0) -> Tensor:
        known = ys[at].expand(len(weights), -1, -1)
        return pinball_loss(model(xs[:, at], counts[at], jitter), known, levels).flatten(1)

    watched = torch.from_numpy(observed_rows(len(counts)))
    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, to_start=start is not None,
        progress=observing(progress, observe, model, config.steps, lambda: per_victim(watched)),
    )  # fmt: skip
    return model


def predict_log_slowdowns(
    model: InterferenceStack, members: Array, count: Array, *, at_once: int = 256
) -> Array:
    """Return quantiles of every member, (stack, colocations, size, levels), in chunks."""
    stack = int(model.standardize.mean.shape[0])
    xs = torch.tensor(members).float().expand(stack, -1, -1, -1)
    counts = torch.tensor(count).float()
    with torch.no_grad():
        out = [
            model(xs[:, start : start + at_once], counts[start : start + at_once])
            for start in range(0, len(counts), at_once)
        ]
    return torch.cat(out, dim=1).numpy().astype(np.float64)
