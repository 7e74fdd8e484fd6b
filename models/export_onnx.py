"""ONNX files with everything inside: logarithms, ensemble, calibration, unit.

Raw features go in and calibrated quantiles come out, so training and serving cannot differ.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from presage.features.schema import columns
from presage.models.fit import LEVELS, ScalarStack, log_offsets
from presage.models.fit_interference import InterferenceStack
from presage.models.targets import Target


class _FeatureTransform(nn.Module):
    """What :func:`presage.models.fit.transform_features` does, as part of the graph."""

    offsets: Tensor
    as_is: Tensor

    def __init__(self, feature_set: str, n_columns: int) -> None:
        super().__init__()
        offsets = torch.from_numpy(log_offsets(feature_set, n_columns)).float()
        self.register_buffer("as_is", torch.isnan(offsets))
        self.register_buffer("offsets", torch.nan_to_num(offsets, nan=1.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.as_is, x, torch.log(x.clamp_min(0) + self.offsets))


class _Calibration(nn.Module):
    """What :func:`presage.models.conformal.calibrate` does, as part of the graph."""

    shift: Tensor

    def __init__(self, margins: dict[float, float]) -> None:
        super().__init__()
        shift = torch.zeros(len(LEVELS))
        for level, margin in margins.items():
            low = LEVELS.index(level)
            shift[low] -= margin
            shift[len(LEVELS) - 1 - low] += margin
        self.register_buffer("shift", shift)

    def forward(self, quantiles: Tensor) -> Tensor:
        q = list(torch.unbind(quantiles + self.shift, -1))
        middle = LEVELS.index(0.5)
        for i in range(middle - 1, -1, -1):
            q[i] = torch.minimum(q[i], q[i + 1])
        for i in range(middle + 1, len(q)):
            q[i] = torch.maximum(q[i], q[i - 1])
        return torch.stack(q, dim=-1)


class ScalarPredictor(nn.Module):
    """Raw features (rows, columns) -> calibrated quantiles (rows, levels) in the unit."""

    def __init__(self, stack: ScalarStack, target: Target, margins: dict[float, float]) -> None:
        super().__init__()
        self.transform = _FeatureTransform("full", len(columns("full")))
        self.stack = stack
        self.calibrate = _Calibration(margins)
        self.is_scale = target.is_scale
        self.prior = None if target.prior is None else columns("full").index(target.prior)

    def forward(self, features: Tensor) -> Tensor:
        """(rows, columns) -> (rows, levels)."""
        learnt: Tensor = self.calibrate(self.stack(self.transform(features)).mean(0))
        if not self.is_scale:
            return torch.sigmoid(learnt)
        # e^15 times the prior is no forecast any more, but it is a number.
        scale = torch.exp(learnt.clamp(-15.0, 15.0))
        return scale if self.prior is None else scale * features[:, self.prior : self.prior + 1]


class InterferencePredictor(nn.Module):
    """Raw member features (C, K, G) and mask (C, K) -> calibrated slowdowns (C, K, levels)."""

    def __init__(
        self, stack: InterferenceStack, n_columns: int, margins: dict[float, float]
    ) -> None:
        super().__init__()
        self.transform = _FeatureTransform("common", n_columns)
        self.stack = stack
        self.calibrate = _Calibration(margins)
        self.members = int(stack.standardize.mean.shape[0])

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """(C, K, G) and (C, K) -> (C, K, levels)."""
        x = self.transform(members)
        log_slowdown = self.stack(x.expand(self.members, -1, -1, -1), mask).mean(0)
        log_slowdown = self.calibrate(log_slowdown).clamp_min(0.0)
        # A job without co-runners is not slowed down, whatever a network says.
        shared = (mask.sum(-1, keepdim=True) > 1.5).to(members.dtype)
        return torch.exp(log_slowdown * shared[..., None] * mask[..., None])


def export(module: nn.Module, examples: dict[str, tuple[Tensor, tuple[str, ...]]]) -> bytes:
    """ONNX bytes of a predictor, its output named "quantiles".

    ``examples`` maps each input's name to an example and the names of its leading dimensions,
    which stay dynamic.

    Equal weights give equal bytes in every checkout: what the exporter writes of source paths
    is removed.
    """
    shapes: dict[str, Any] = {
        name: dict(enumerate(leading)) for name, (_, leading) in examples.items()
    }
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(),
            tuple(tensor for tensor, _ in examples.values()),
            dynamo=True,
            input_names=list(examples),
            output_names=["quantiles"],
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _strip_paths(model)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _strip_paths(model: Any) -> None:
    """Remove metadata that names source files: it differs between checkouts."""
    graph = model.graph
    for item in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del item.metadata_props[:]
        item.ClearField("doc_string")
    del graph.metadata_props[:]
    del model.metadata_props[:]
    graph.ClearField("doc_string")
    model.ClearField("doc_string")


def select_members(stack: nn.Module, keep: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Keep only some members of a stack, in place: the ones a release ships."""
    index = torch.from_numpy(keep)
    for module in stack.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach()[index].clone()))
        for name in ("mean", "scale", "y_mean", "y_scale"):  # of each member its own
            if name in dict(module.named_buffers(recurse=False)):
                setattr(module, name, getattr(module, name)[index].clone())
