"""Conditional ONNX model: two models in one, each of which runs only on the rows routed to it.

Most rows of a request are on devices of one class. ONNX's ``If`` costs about as much as one
operator; running the networks of the other class would cost as much as the routed ones
(decision 20).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OUTPUT = "quantiles"

_CONSTANTS = (
    numpy_helper.from_array(np.float32(0), "zero"),
    numpy_helper.from_array(np.array([-1], dtype=np.int64), "flat"),
)


def make_conditional_model(which: Any, first: Any, second: Any) -> Any:
    """Return a model that runs each row through one of two models of equal inputs.

    The output of ``which`` is a number for each row (the leading dimension of all inputs), above 0
    where ``first`` is to run. If all rows are routed to one model, only that one runs; otherwise
    each model runs on its own rows.
    """
    models = {"which": which, "first": first, "second": second}
    inputs = {value.name: value.name for value in first.graph.input}
    route, first_output, second_output = (
        f"{prefix}.{model.graph.output[0].name}" for prefix, model in models.items()
    )
    output_type = first.graph.output[0].type

    def branch(steps: Iterable[Any], out: str) -> Any:
        return helper.make_graph(steps, out, [], [helper.make_value_info(out, output_type)])

    only = {
        prefix: _prefix_nodes(model.graph.node, prefix, inputs) for prefix, model in models.items()
    }
    mixed = _make_mixed_nodes(models, inputs, first_output, second_output)
    not_all = [
        _make_node("ReduceMax", ["firsts"], "most", keepdims=0),
        _make_node("Greater", ["most", "zero"], "any"),
        _make_if("any", branch(mixed, "mixed"), branch(only["second"], second_output), "not all"),
    ]
    nodes = [
        *only["which"],
        # Compare before reducing: the minimum of values with NaN is undefined.
        _make_node("Greater", [route, "zero"], "chosen"),
        _make_node("Cast", ["chosen"], "firsts", to=TensorProto.FLOAT),
        _make_node("ReduceMin", ["firsts"], "least", keepdims=0),
        _make_node("Greater", ["least", "zero"], "all"),
        _make_if("all", branch(only["first"], first_output), branch(not_all, "not all"), OUTPUT),
    ]
    graph = helper.make_graph(
        nodes, "choice", first.graph.input, [helper.make_value_info(OUTPUT, output_type)],
        [*_prefix_weights(models), *_CONSTANTS],
    )  # fmt: skip
    opsets = {one.domain: one for model in (second, first) for one in model.opset_import}
    return helper.make_model(graph, opset_imports=opsets.values(), ir_version=first.ir_version)


def _make_mixed_nodes(
    models: Mapping[str, Any], inputs: Mapping[str, str], first_output: str, second_output: str
) -> list[Any]:
    """Return nodes that run both models, each on its own rows, and merge their outputs."""
    nodes = _gather_rows(inputs)
    for prefix in ("first", "second"):
        own_inputs = {name: f"{prefix} {name}" for name in inputs}
        nodes += _prefix_nodes(models[prefix].graph.node, prefix, own_inputs)
    return nodes + _scatter_outputs(first_output, second_output)


def _gather_rows(inputs: Iterable[str]) -> list[Any]:
    """Return nodes that split every input into the rows of each model, and their positions."""
    nodes = [
        _make_node("Reshape", ["chosen", "flat"], "is first"),
        _make_node("Not", ["is first"], "is second"),
    ]
    for prefix in ("first", "second"):
        nodes += [
            _make_node("NonZero", [f"is {prefix}"], f"{prefix} found"),
            _make_node("Transpose", [f"{prefix} found"], f"{prefix} rows"),
            *(
                _make_node("GatherND", [name, f"{prefix} rows"], f"{prefix} {name}")
                for name in inputs
            ),
        ]
    return nodes


def _scatter_outputs(first_output: str, second_output: str) -> list[Any]:
    """Return nodes that put the outputs of both models in the order of the rows."""
    return [
        _make_node("Concat", [first_output, second_output], "answers", axis=0),
        _make_node("Concat", ["first rows", "second rows"], "rows", axis=0),
        _make_node("ScatterND", ["answers", "rows", "answers"], "mixed"),
    ]


def _prefix_nodes(nodes: Iterable[Any], prefix: str, inputs: Mapping[str, str]) -> list[Any]:
    """Return copies of nodes, all names prefixed except those of inputs."""

    def rename(name: str) -> str:
        return inputs.get(name, f"{prefix}.{name}") if name else name

    out = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = rename(node.name)
        copy.input[:] = [rename(name) for name in node.input]
        copy.output[:] = [rename(name) for name in node.output]
        for attribute in copy.attribute:
            for value in attribute.g.output:
                value.name = rename(value.name)
            if attribute.g.node:
                inner = _prefix_nodes(attribute.g.node, prefix, inputs)
                del attribute.g.node[:]
                attribute.g.node.extend(inner)
        out.append(copy)
    return out


def _prefix_weights(models: Mapping[str, Any]) -> list[Any]:
    """Return the initializers of all models, prefixed as their nodes are."""
    out = []
    for prefix, model in models.items():
        for weight in model.graph.initializer:
            weight.name = f"{prefix}.{weight.name}"
            out.append(weight)
    return out


def _make_if(condition: str, yes: Any, no: Any, output: str) -> Any:
    return _make_node("If", [condition], output, then_branch=yes, else_branch=no)


def _make_node(operator: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, [output], **attributes)
