"""Two ONNX models as one, of which only that runs which some row asks for.

Rows of a request are mostly on devices of one class. ONNX's ``If`` costs about as much as one
operator; the networks of the other class cost as much as those that are asked (decision 20).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import compose, helper, numpy_helper

OUTPUT = "quantiles"


def choice(which: Any, first: Any, second: Any) -> Any:
    """A model that answers each row by one of two, which take the same inputs.

    ``which`` says for every row, broadcast to the answers, a number above 0 where it is the
    first's. Where all rows are one's, only that is run; else both.
    """
    models = {
        name: compose.add_prefix(model, f"{name}.", rename_inputs=False)
        for name, model in (("which", which), ("first", first), ("second", second))
    }
    nodes = {name: list(model.graph.node) for name, model in models.items()}
    asked, one, other = (model.graph.output[0].name for model in models.values())
    answer = first.graph.output[0].type

    def branch(steps: Iterable[Any], out: str) -> Any:
        return helper.make_graph(steps, out, [], [helper.make_value_info(out, answer)])

    both = [
        *nodes["first"],
        *nodes["second"],
        helper.make_node("Greater", [asked, "zero"], ["is_first"]),
        helper.make_node("Where", ["is_first", one, other], ["both"]),
    ]
    not_all = [
        helper.make_node("ReduceMax", [asked], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["any"]),
        _either("any", branch(both, "both"), branch(nodes["second"], other), "not_all"),
    ]
    whole = [
        *nodes["which"],
        helper.make_node("ReduceMin", [asked], ["least"], keepdims=0),
        helper.make_node("Greater", ["least", "zero"], ["all"]),
        _either("all", branch(nodes["first"], one), branch(not_all, "not_all"), OUTPUT),
    ]
    weights = [weight for model in models.values() for weight in model.graph.initializer]
    weights.append(numpy_helper.from_array(np.float32(0), "zero"))
    graph = helper.make_graph(
        whole, "choice", first.graph.input, [helper.make_value_info(OUTPUT, answer)], weights
    )
    return helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)


def _either(condition: str, yes: Any, no: Any, out: str) -> Any:
    return helper.make_node("If", [condition], [out], then_branch=yes, else_branch=no)
