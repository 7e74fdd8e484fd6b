"""Loss curves: the loss of networks on training rows and on held-out rows while they train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from presage.system.arrays import Array
from presage.system.text.progress import Progress

POINTS = 20  # of a curve
MOST_ROWS = 1024  # whose loss is computed at each point; evenly spaced if there are more
COLUMNS = ("split", "step", "training", "validation")

Observe = Callable[[int, Array], None]  # step, and the loss of each member and row


def observed_steps(steps: int) -> frozenset[int]:
    """Return the steps, counted from 1, after which losses are computed; the last is one."""
    return frozenset(np.linspace(1, steps, min(POINTS, steps)).round().astype(int).tolist())


def observed_rows(rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the positions of the rows, at most ``MOST_ROWS``, whose loss is computed."""
    return np.linspace(0, rows - 1, min(MOST_ROWS, rows)).round().astype(np.int64)


def observing(
    progress: Progress | None,
    observe: Observe | None,
    model: nn.Module,
    steps: int,
    losses: Callable[[], Tensor],
) -> Progress | None:
    """Return a progress callback that also passes ``losses()`` to ``observe`` at some steps.

    The model is not in training mode then: it would draw random numbers, and train differently.
    """
    if observe is None:
        return progress
    observed = observed_steps(steps)

    def after(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total)
        if done in observed:
            model.eval()
            with torch.no_grad():
                observe(done, losses().numpy())
            model.train()

    return after


class LossCurves:
    """Mean loss of the networks of each split on both kinds of rows, by step.

    Parameters
    ----------
    splits : sequence of str
        Split of each member of the stack.
    training, validation : ndarray of shape (members, rows)
        Weights of the observed rows: of those that a member is trained on, and of those of the fold
        that it is not trained on.
    """

    def __init__(self, splits: Sequence[str], training: Array, validation: Array) -> None:
        self._splits = np.array(splits)
        self._weights = (training, validation)
        self._points: list[tuple[Any, ...]] = []

    def observe(self, step: int, losses: Array) -> None:
        """Add a point to the curves of each split, from losses (members, rows)."""
        for split in dict.fromkeys(self._splits.tolist()):
            chosen = self._splits == split
            means = (_mean(losses[chosen], weights[chosen]) for weights in self._weights)
            self._points.append((split, step, *means))

    def table(self) -> pd.DataFrame:
        """Return the points, with ``COLUMNS``; NaN where a split has no such rows."""
        return pd.DataFrame(self._points, columns=list(COLUMNS))


def _mean(losses: Array, weights: Array) -> float:
    """Return the mean over members of their weighted means; NaN without any row."""
    totals = weights.sum(axis=1)
    known = totals > 0
    if not known.any():
        return float("nan")
    sums = (losses * weights).sum(axis=1)
    return float((sums[known] / totals[known]).mean())
