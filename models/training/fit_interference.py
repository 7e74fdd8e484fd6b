"""Training of interference networks: AdamW on pinball loss in batches, all folds at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from presage.models.networks.interference_mlp import InterferenceMLP
from presage.models.networks.stacked import Standardizer, pinball_loss, take_members
from presage.models.training.fit import (
    ALL_MEMBERS,
    LEVELS,
    FitConfig,
    check_training_rows,
    copy_stack,
    minimize,
    sum_of_member_means,
)
from presage.models.training.loss_curves import Observe, observed_rows, observing
from presage.system.arrays import Array, Ints
from presage.system.text.progress import Progress


class InterferenceStack(nn.Module):
    """Standardizer and interference network, for every member of a stack.

    The names of parameters and buffers are keys of the networks' files.
    """

    def __init__(self, members: Iterable[Tensor], row_weights: Tensor, config: FitConfig) -> None:
        super().__init__()
        flat = [of_network.flatten(0, 1) for of_network in members]  # each (C * K, G)
        self.standardize = Standardizer(flat, row_weights.flatten(1))
        self.net = InterferenceMLP(
            len(flat), flat[0].shape[-1], hidden=config.hidden, levels=LEVELS
        )

    def forward(self, members: Tensor, count: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return log-slowdown quantiles (stack, C, K, levels).

        ``members`` has the shape (stack, C, K, G) and ``count`` the shape (C, K). ``noise``
        (stack, C * K, G) is added to the standardized columns.
        """
        stack, colocations, size, n_in = members.shape
        flat = self.standardize(members.reshape(stack, colocations * size, n_in))
        if noise is not None:
            flat = flat + noise
        out: Tensor = self.net(flat.reshape(stack, colocations, size, n_in), count)
        return out


def fit_interference(
    members: Array,
    count: Array,
    y: Array,
    row_weights: Array,
    config: FitConfig,
    *,
    of_network: Ints | None = None,
    part: slice = ALL_MEMBERS,
    start: InterferenceStack | None = None,
    progress: Progress | None = None,
    observe: Observe | None = None,
) -> InterferenceStack:
    """Fit a stack of interference networks, from scratch or by fine-tuning others.

    Parameters
    ----------
    members : ndarray of shape (variants, colocations, size, columns)
        Padded, transformed features of every member.
    count : ndarray of shape (colocations, size)
        Number of identical members at each place: usually 1, 0 for padding.
    y : ndarray of shape (colocations, size)
        Measured log slowdowns; any number where there is none.
    row_weights : ndarray of shape (stack, colocations, size)
        0 hides a victim from a member of the stack.
    config : FitConfig
    of_network : ndarray of int, shape (stack,), optional
        Which of the variants each network of the stack reads; by default all read the only one.
    part : slice
        Networks to fit and return, as in :func:`presage.models.training.fit.fit_scalar`.
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
    xs, ys = torch.tensor(members).float(), torch.tensor(y).float()
    variants = _variants(of_network, len(weights))
    model = (
        InterferenceStack((xs[i] for i in variants), weights, config)
        if start is None
        else copy_stack(start, len(weights))
    )
    networks, variants = len(weights), variants[part]
    if part != ALL_MEMBERS:
        take_members(model, torch.arange(networks)[part])
        weights = weights[part]
    order, batch = np.random.default_rng(config.seed), min(config.batch, len(counts))
    levels = torch.tensor(LEVELS)

    def loss() -> Tensor:
        chosen = torch.from_numpy(order.choice(len(counts), batch, replace=False))
        return sum_of_member_means(per_victim(chosen, config.jitter), weights[:, chosen].flatten(1))

    def per_victim(at: Tensor, jitter: float = 0.0) -> Tensor:
        known, read = ys[at].expand(len(weights), -1, -1), xs[:, at]
        shape = (networks, read.shape[1] * read.shape[2], read.shape[3])
        noise = jitter * torch.randn(shape)[part] if jitter else None
        return pinball_loss(model(read[variants], counts[at], noise), known, levels).flatten(1)

    watched = torch.from_numpy(observed_rows(len(counts)))
    minimize(
        model, loss, steps=config.steps, learning_rate=config.learning_rate,
        weight_decay=config.weight_decay, to_start=start is not None,
        progress=observing(progress, observe, model, config.steps, lambda: per_victim(watched)),
    )  # fmt: skip
    return model


def predict_log_slowdowns(
    model: InterferenceStack,
    members: Array,
    count: Array,
    *,
    of_network: Ints | None = None,
    at_once: int = 256,
) -> Array:
    """Return quantiles of every member, (stack, colocations, size, levels), in chunks.

    The parameters are those of :func:`fit_interference`.
    """
    xs, counts = torch.tensor(members).float(), torch.tensor(count).float()
    variants = _variants(of_network, int(model.standardize.mean.shape[0]))
    with torch.no_grad():
        out = [
            model(xs[:, start : start + at_once][variants], counts[start : start + at_once])
            for start in range(0, len(counts), at_once)
        ]
    return torch.cat(out, dim=1).numpy().astype(np.float64)


def _variants(of_network: Ints | None, stack: int) -> Tensor:
    """Return the variant of the features that each network reads, shape (stack,)."""
    chosen = np.zeros(stack, dtype=np.int64) if of_network is None else of_network
    return torch.from_numpy(chosen)
