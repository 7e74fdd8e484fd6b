"""Training of all networks of a cross-validation: at once, or in parts on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from torch import nn

from presage.models.networks.stacked import join_members
from presage.models.training.loss_curves import LossCurves
from presage.models.training.torch_settings import make_torch_deterministic
from presage.system.arrays import Array
from presage.system.processes.spread import spread, task_slots
from presage.system.text.progress import training_progress

Stack = TypeVar("Stack", bound=nn.Module)


def fit_members(fit: Callable[..., Stack], members: int, curves: LossCurves, title: str) -> Stack:
    """Return the stack of all members, and add the losses of their training to ``curves``.

    Parameters
    ----------
    fit : callable
        Fits the slice ``part`` of the members, and takes ``progress`` and ``observe``, such as
        :func:`presage.models.training.fit.fit_scalar`.
    members : int
    curves : LossCurves
    title : str
        Name of the training in its progress bar.
    """
    parts = member_parts(members, task_slots())
    with training_progress(title) as progress:
        if len(parts) == 1:
            return fit(progress=progress, observe=curves.observe)
        found = list(spread(_fit_part, parts, shared=(fit,)))
    for observed in zip(*(losses for _, losses in found), strict=True):
        curves.observe(observed[0][0], np.concatenate([losses for _, losses in observed]))
    joined: Stack = join_members([stack for stack, _ in found])
    return joined


def member_parts(members: int, slots: int) -> list[slice]:
    """Return slices of about equal numbers of members, at most one for each slot.

    A part has two members or more, unless it is the whole: torch sums the gradients of a stack of
    one in another order, and rounds differently.
    """
    count = max(1, min(slots, members // 2))
    ends = np.linspace(0, members, count + 1).round().astype(int).tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


def _fit_part(fit: Callable[..., Any], part: slice) -> tuple[Any, list[tuple[int, Array]]]:
    """Return the fitted members of a part, and their losses by step."""
    make_torch_deterministic()
    losses: list[tuple[int, Array]] = []
    stack = fit(part=part, observe=lambda step, found: losses.append((step, found)))
    return stack, losses
