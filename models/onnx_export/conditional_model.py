"""Two ONNX models as one, each of which only runs on the rows that ask for it.

Rows of a request are mostly on devices of one class. ONNX's ``If`` costs about as much as one
operator; the networks of the other class cost as much as those that are asked (decision 20).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OUTPUT = "quantiles"


def choice(which: Any, first: Any, second: Any) -> Any:
    """A model that answers each row by one of two, which take the same inputs.

    ``which`` says for every row, the leading dimension of all inputs, a number above 0 where it
    is the first's. Where all rows are one's, only that is run; else each on its own rows.
    """
    models = {"which": which, "first": first, "second": second}
    inputs = {one.name: one.name for one in first.graph.input}
    asked, of_first, of_second = (
        f"{who}.{model.graph.output[0].name}" for who, model in models.items()
    )
    answer = first.graph.output[0].type

    def branch(steps: Iterable[Any], out: str) -> Any:
        return helper.make_graph(steps, out, [], [helper.make_value_info(out, answer)])

    only = {who: _nodes(model.graph.node, who, inputs) for who, model in models.items()}
    mixed = _rows_of_each(inputs)
    for who in ("first", "second"):
        mixed += _nodes(models[who].graph.node, who, {name: f"{who} {name}" for name in inputs})
    mixed += _in_order(of_first, of_second)
    not_all = [
        _node("ReduceMax", ["firsts"], "most", keepdims=0),
        _node("Greater", ["most", "zero"], "any"),
        _if("any", branch(mixed, "mixed"), branch(only["second"], of_second), "not all"),
    ]
    whole = [
        *only["which"],
        # Compared before they are put together: no minimum is safe of what is no number.
        _node("Greater", [asked, "zero"], "chosen"),
        _node("Cast", ["chosen"], "firsts", to=TensorProto.FLOAT),
        _node("ReduceMin", ["firsts"], "least", keepdims=0),
        _node("Greater", ["least", "zero"], "all"),
        _if("all", branch(only["first"], of_first), branch(not_all, "not all"), OUTPUT),
    ]
    graph = helper.make_graph(
        whole, "choice", first.graph.input, [helper.make_value_info(OUTPUT, answer)],
        [*_weights(models), *_CONSTANTS],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)


_CONSTANTS = (
    numpy_helper.from_array(np.float32(0), "zero"),
    numpy_helper.from_array(np.array([-1], dtype=np.int64), "flat"),
)


def _rows_of_each(inputs: Iterable[str]) -> list[Any]:
    """Rows of every input that are the first's and the second's, and where they are."""
    nodes = [
        _node("Reshape", ["chosen", "flat"], "is first"),
        _node("Not", ["is first"], "is second"),
    ]
    for who in ("first", "second"):
        nodes += [
            _node("NonZero", [f"is {who}"], f"{who} found"),
            _node("Transpose", [f"{who} found"], f"{who} rows"),
            *(_node("GatherND", [name, f"{who} rows"], f"{who} {name}") for name in inputs),
        ]
    return nodes


def _in_order(of_first: str, of_second: str) -> list[Any]:
    """Both answers, each where its row was."""
    return [
        _node("Concat", [of_first, of_second], "answers", axis=0),
        _node("Concat", ["first rows", "second rows"], "rows", axis=0),
        _node("ScatterND", ["answers", "rows", "answers"], "mixed"),
    ]


def _nodes(nodes: Iterable[Any], who: str, inputs: Mapping[str, str]) -> list[Any]:
    """Copies with all names said to be whose they are, but for inputs."""

    def named(name: str) -> str:
        return inputs.get(name, f"{who}.{name}") if name else name

    out = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = named(node.name)
        copy.input[:] = [named(name) for name in node.input]
        copy.output[:] = [named(name) for name in node.output]
        for attribute in copy.attribute:
            for value in attribute.g.output:
                value.name = named(value.name)
            if attribute.g.node:
                inner = _nodes(attribute.g.node, who, inputs)
                del attribute.g.node[:]
                attribute.g.node.extend(inner)
        out.append(copy)
    return out


def _weights(models: Mapping[str, Any]) -> list[Any]:
    """All of them, named as their users are."""
    out = []
    for who, model in models.items():
        for weight in model.graph.initializer:
            weight.name = f"{who}.{weight.name}"
            out.append(weight)
    return out


def _if(condition: str, yes: Any, no: Any, output: str) -> Any:
    return _node("If", [condition], output, then_branch=yes, else_branch=no)


def _node(operator: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, [output], **attributes)
