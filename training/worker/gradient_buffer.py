"""Flat buffer of a model's gradients, in which workers sum them.

A row has the gradients of all trainable parameters, the changes of the model's buffers (such as the
running means of batch normalization), and the loss, each times the shard's share of the samples.
There is one row, or one for each virtual shard of a deterministic job. A worker fills its own rows;
the others are zero. After the sum over workers, rows are added in their order, so that the result
of a deterministic job does not depend on the number of workers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from presage.errors import ElasticError

if TYPE_CHECKING:
    from torch import Tensor, nn


class GradientBuffer:
    """Gradients, changes of buffers and loss of one step.

    Parameters
    ----------
    rows : int
        Number of virtual shards; 1 if the job is not deterministic.

    Raises
    ------
    ElasticError
        The model has no trainable parameter, or one whose type is not real.
    """

    def __init__(self, model: nn.Module, rows: int) -> None:
        import torch

        self._parameters = [one for one in model.parameters() if one.requires_grad]
        if not self._parameters:
            raise ElasticError("the model has no trainable parameter")
        if any(not one.is_floating_point() for one in self._parameters):
            raise ElasticError("the model has a parameter whose type is not real")
        self._buffers = list(model.buffers())
        wide = any(one.dtype == torch.float64 for one in (*self._parameters, *self._buffers))
        self._gradient_count = sum(one.numel() for one in self._parameters)
        length = self._gradient_count + sum(one.numel() for one in self._buffers) + 1
        self._rows = torch.zeros(
            (rows, length),
            dtype=torch.float64 if wide else torch.float32,
            pin_memory=self._parameters[0].is_cuda,
        )
        self.array: NDArray[np.floating] = self._rows.view(-1).numpy()
        self._views = [self._split(row) for row in self._rows]
        self._before: list[Tensor] = []

    def begin(self, *, clear: bool) -> None:
        """Begin a step: remember the model's buffers, and clear rows that are not collected."""
        if clear:
            self._rows.zero_()
        self._before = [one.detach().clone() for one in self._buffers]

    def collect(self, row: int, weight: float, loss: float) -> bool:
        """Enter the gradients of a shard, and remove them from the model.

        Parameters
        ----------
        weight : float
            The shard's share of the samples of the step.

        Returns
        -------
        bool
            Whether all gradients are finite.
        """
        import torch

        with torch.no_grad():
            gradients, changes = self._views[row]
            for parameter, view in zip(self._parameters, gradients, strict=True):
                if parameter.grad is None:
                    view.zero_()
                elif parameter.grad.dtype == view.dtype and not parameter.grad.is_cuda:
                    torch.mul(parameter.grad, weight, out=view)
                else:
                    view.copy_(parameter.grad).mul_(weight)
                parameter.grad = None
            for buffer, before, view in zip(self._buffers, self._before, changes, strict=True):
                # Equal infinities have no difference.
                view.copy_(torch.where(buffer == before, 0, buffer - before)).mul_(weight)
                buffer.copy_(before)
            values = self._rows[row]
            values[-1] = loss * weight
            return _is_finite(values[: self._gradient_count])

    def discard(self) -> None:
        """Remove gradients from the model."""
        for parameter in self._parameters:
            parameter.grad = None

    def apply(self) -> float:
        """Give the summed gradients and changes of buffers to the model; return the mean loss."""
        import torch

        with torch.no_grad():
            total = self._rows[0]
            for row in self._rows[1:]:
                total += row
            gradients, changes = self._views[0]
            for parameter, view in zip(self._parameters, gradients, strict=True):
                parameter.grad = view.to(device=parameter.device, dtype=parameter.dtype)
            for buffer, before, view in zip(self._buffers, self._before, changes, strict=True):
                change = view if buffer.is_floating_point() else view.round()
                buffer.copy_(before + change.to(device=buffer.device, dtype=buffer.dtype))
        return float(total[-1])

    def _split(self, row: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        tensors = [*self._parameters, *self._buffers]
        import torch

        parts = torch.split(row[:-1], [one.numel() for one in tensors])
        views = [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]
        return views[: len(self._parameters)], views[len(self._parameters) :]


def _is_finite(values: Tensor) -> bool:
    """Whether all values are finite."""
    import torch

    if math.isfinite(torch.dot(values, values)):
        return True
    low, high = torch.aminmax(values)  # the squares may have overflowed
    return math.isfinite(low) and math.isfinite(high)
