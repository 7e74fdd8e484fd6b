"""ONNX export of predictors: logarithms, ensemble, calibration and unit are in the graph.

The input is raw features and the output calibrated quantiles, so training and serving cannot
differ.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from presage.models.networks.boosted_trees import BoostedTrees
from presage.models.networks.predictors import InterferencePredictor, Router, ScalarPredictor
from presage.models.onnx_export.conditional_model import OUTPUT, make_conditional_model
from presage.models.onnx_export.fused_interference import FusedInterference
from presage.models.onnx_export.fused_solo import FusedScalar
from presage.models.onnx_export.trees import TREES, connect_trees

Examples = dict[str, tuple[Tensor, tuple[str, ...]]]


def export(module: nn.Module, examples: Examples, output: str = OUTPUT) -> bytes:
    """Return the ONNX bytes of a predictor, or of another network with one output.

    Predictors are fused to few operators, and a :class:`Router` becomes a conditional model, whose
    unused branch does not run. Equal weights give equal bytes in every checkout: source paths that
    the exporter writes are removed.

    Parameters
    ----------
    module : nn.Module
    examples : mapping of str to (Tensor, tuple of str)
        For each input, an example and the names of its leading dimensions, which stay dynamic.
    output : str
        Name of the output, for networks that are no predictors.
    """
    import onnx

    if output == OUTPUT:
        model = _to_model(module, examples)
    else:
        model = _export_module(module, examples, output)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _to_model(module: nn.Module, examples: Examples) -> Any:
    if isinstance(module, Router):
        rows = next(iter(examples))
        which = _export_module(_Routing(module), {rows: examples[rows]})
        first, second = _to_model(module.first, examples), _to_model(module.second, examples)
        return make_conditional_model(which, first, second)
    if isinstance(module, ScalarPredictor):
        if module.trees is not None:
            return _export_with_trees(module, module.trees, examples)
        module = FusedScalar(module)
    elif isinstance(module, InterferencePredictor):
        module = FusedInterference(module)
    return _export_module(module, examples)


def _export_with_trees(module: ScalarPredictor, trees: BoostedTrees, examples: Examples) -> Any:
    (features, leading) = next(iter(examples.values()))
    forecasts = {TREES: (features.new_zeros(len(features), 1), leading)}
    model = _export_module(FusedScalar(module), examples | forecasts)
    connect_trees(model, trees)
    return model


class _Routing(nn.Module):
    """Routes of a router's rows, as a module of its own."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.of = router  # a prefix of names in the ONNX file

    def forward(self, rows: Tensor) -> Tensor:
        return self.of.route(rows)


def _export_module(module: nn.Module, examples: Examples, output: str = OUTPUT) -> Any:
    """Return the ONNX model of a module, unchanged."""
    shapes: list[dict[int, Any]] = [dict(enumerate(leading)) for _, leading in examples.values()]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(),
            tuple(tensor for tensor, _ in examples.values()),
            dynamo=True,
            input_names=list(examples),
            output_names=[output],
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
    """Translate softplus to one operator.

    Torch's translation adds a branch for large values, which ONNX Runtime's operator handles.
    """
    from onnxscript import opset20

    assert beta == 1.0
    return opset20.Softplus(x)


def _strip_paths(model: Any) -> None:
    """Remove metadata with source paths, which differ between checkouts."""
    graph = model.graph
    for item in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del item.metadata_props[:]
        item.ClearField("doc_string")
    del graph.metadata_props[:]
    del model.metadata_props[:]
    graph.ClearField("doc_string")
    model.ClearField("doc_string")
