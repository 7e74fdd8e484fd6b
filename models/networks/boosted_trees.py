"""Boosted trees as a torch module, to be averaged with the networks of a solo predictor."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from presage.models.training.fit import LEVELS


class BoostedTrees(nn.Module):
    """Sum of regression trees on raw features, times the weight of the trees in the mean.

    The names of buffers are keys of the networks' files.

    Parameters
    ----------
    arrays : mapping of str to Tensor
        Per node of all trees, shape (nodes,): ``column`` and ``threshold`` of its test, ``low`` and
        ``high``, the positions of the next node for rows up to and above the threshold, and
        ``value``, what a leaf adds. A leaf leads to itself. Per tree, ``roots``: the position of
        its first node, ascending. ``base`` and ``weight`` have the shape (1,); ``base`` and
        ``value`` are already multiplied by the weight.
    """

    column: Tensor
    threshold: Tensor
    low: Tensor
    high: Tensor
    value: Tensor
    roots: Tensor
    base: Tensor
    weight: Tensor

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in self.__class__.__annotations__:
            self.register_buffer(name, arrays[name])

    def forward(self, features: Tensor) -> Tensor:
        """Return weighted forecasts (rows, 1) of raw features (rows, columns)."""
        nodes = self.roots.expand(len(features), -1)
        while True:
            is_low = features.gather(1, self.column[nodes]) <= self.threshold[nodes]
            following = torch.where(is_low, self.low[nodes], self.high[nodes])
            if torch.equal(following, nodes):
                return self.base + self.value[nodes].sum(1, keepdim=True)
            nodes = following

    def move_medians(self, quantiles: Tensor, features: Tensor) -> Tensor:
        """Return quantiles (rows, levels), moved so that medians become means with the trees."""
        middle = LEVELS.index(0.5)
        median = quantiles[:, middle : middle + 1]
        out: Tensor = quantiles + (self(features) - self.weight * median)
        return out
