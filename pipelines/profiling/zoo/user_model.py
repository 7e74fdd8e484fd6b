"""A user's own model, ``module:function``, as a job like those of the zoo."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.system.processes.user_object import call_user_function


def training_step(source: str, *, batch_size: int, optimizer: str) -> TrainingStep:
    """Return one step of the model that the function creates.

    The loss is the mean of every floating-point output: it needs no target, and its cost is
    negligible.
    """
    module, inputs = call_user_function(source, batch_size)
    elements = sum(tensor.numel() for tensor in inputs) // batch_size
    return supervised(module, inputs, _loss, optimizer=optimizer, input_elements=max(1, elements))


def _loss(outputs: Any) -> Tensor:
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return torch.stack([t.float().mean() for t in tensors if t.is_floating_point()]).sum()
