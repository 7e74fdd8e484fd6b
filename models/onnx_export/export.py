"""ONNX files with everything inside: logarithms, ensemble, calibration, unit.

Raw features go in and calibrated quantiles come out, so training and serving cannot differ.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from presage.models.networks.predictors import Choice, InterferencePredictor, ScalarPredictor
from presage.models.onnx_export.conditional_model import OUTPUT, choice
from presage.models.onnx_export.fused_interference import FoldedInterference
from presage.models.onnx_export.fused_solo import FoldedScalar

Examples = dict[str, tuple[Tensor, tuple[str, ...]]]


def export(module: nn.Module, examples: Examples) -> bytes:
    """ONNX bytes of a predictor, its output named "quantiles".

    ``examples`` maps each input's name to an example and the names of its leading dimensions,
    which stay dynamic.

    What it says is put together to few operators, and where two modules share the rows one that
    is asked for none of them does not run. Equal weights give equal bytes in every checkout: what
    the exporter writes of source paths is removed.
    """
    import onnx

    model = _model(module, examples)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _model(module: nn.Module, examples: Examples) -> Any:
    if isinstance(module, Choice):
        rows = next(iter(examples))
        which = _graph(_Which(module), {rows: examples[rows]})
        return choice(which, _model(module.first, examples), _model(module.second, examples))
    if isinstance(module, ScalarPredictor):
        module = FoldedScalar(module)
    elif isinstance(module, InterferencePredictor):
        module = FoldedInterference(module)
    return _graph(module, examples)


class _Which(nn.Module):
    """Which rows the first of two modules is asked."""

    def __init__(self, of: Choice) -> None:
        super().__init__()
        self.of = of

    def forward(self, rows: Tensor) -> Tensor:
        return self.of.which(rows)


def _graph(module: nn.Module, examples: Examples) -> Any:
    """A module as it is, as an ONNX model."""
    shapes: list[dict[int, Any]] = [dict(enumerate(leading)) for _, leading in examples.values()]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(),
            tuple(tensor for tensor, _ in examples.values()),
            dynamo=True,
            input_names=list(examples),
            output_names=[OUTPUT],
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
            custom_translation_table={torch.ops.aten.softplus.default: _softplus},
        )
    assert program is not None
    model = program.model_proto
    _strip_paths(model)
    return model


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Torch's own translation adds a choice for large values, which ONNX Runtime has inside."""
    from onnxscript import opset20

    assert beta == 1.0
    return opset20.Softplus(x)


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
