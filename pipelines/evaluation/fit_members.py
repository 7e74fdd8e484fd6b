"""Training of all networks of a cross-validation: at once, or in parts for large tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from torch import nn

from presage.models.networks.stacked import join_members
from presage.models.training.loss_curves import LossCurves
from presage.models.training.splits import MANY_ROWS
from presage.models.training.torch_settings import make_torch_deterministic
from presage.system.arrays import Array
from presage.system.processes.spread import spread
from presage.system.text.progress import training_progress

PART = 12  # members of a part

Stack = TypeVar("Stack", bound=nn.Module)


def fit_members(
    fit: Callable[..., Stack], members: int, rows: int, curves: LossCurves, title: str
) -> Stack:
    """Return the stack of all members, and add the losses of their training to ``curves``.

    From ``MANY_ROWS`` rows on, the stack is trained in parts, which a Ray cluster computes where
    there is one. The parts are the same without a cluster, and so are the networks.

    Parameters
    ----------
    fit : callable
        Fits the slice ``part`` of the members, and takes ``progress`` and ``observe``, such as
        :func:`presage.models.training.fit.fit_scalar`.
    members, rows : int
        Members of the stack, and rows of the table.
    curves : LossCurves
    title : str
        Name of the training in its progress bar.
    """
    parts = member_parts(members, rows)
    found = []
    with training_progress(title) as progress:
        if len(parts) == 1:
            return fit(progress=progress, observe=curves.observe)
        for one in spread(_fit_part, parts, shared=(fit,)):
            found.append(one)
            progress(len(found), len(parts))
    for observed in zip(*(losses for _, losses in found), strict=True):
        curves.observe(observed[0][0], np.concatenate([losses for _, losses in observed]))
    joined: Stack = join_members([stack for stack, _ in found])
    return joined


def member_parts(members: int, rows: int) -> list[slice]:
    """Return the slices of members that are trained together."""
    size = PART if rows >= MANY_ROWS else members
    return [slice(first, min(first + size, members)) for first in range(0, members, size)]


def _fit_part(fit: Callable[..., Any], part: slice) -> tuple[Any, list[tuple[int, Array]]]:
    """Return the fitted members of a part, and their losses by step."""
    make_torch_deterministic()
    losses: list[tuple[int, Array]] = []
    stack = fit(part=part, observe=lambda step, found: losses.append((step, found)))
    return stack, losses
