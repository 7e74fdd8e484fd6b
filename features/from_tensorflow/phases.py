"""Nodes of a TensorFlow graph that a step runs, and the phase of each.

A file contains more than a step: initializers, checkpointing, summaries. A graph written by
TensorFlow 1, or by a traced training step, also contains the backward pass and the updates.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from presage.errors import GraphError
from presage.features.from_tensorflow.functions import FlatGraph
from presage.features.from_tensorflow.inputs import INPUTS, is_variable
from presage.features.from_tensorflow.node import (
    Graph,
    Node,
    downstream,
    in_order,
    producer,
    upstream,
)
from presage.features.from_tensorflow.value import STRING, Value
from presage.features.graph.op_kinds import tensorflow_kind
from presage.features.graph.roofline import MATRIX_KINDS

# tf.gradients uses the scope "gradients/...", a gradient tape uses "gradient_tape/...".
_SCOPE = re.compile(r"(^|/)(gradients(_\d+)?|gradient_tape)/")
# By operator, for a graph whose scopes were renamed. A Conv2DBackpropInput may also be a
# transposed convolution of the forward pass.
_GRADIENT_OP = re.compile(r"Grad(?!ient)(WithArgmax|V\d)?$|BackpropFilter")
_RETURNED = re.compile(r"Identity(_\d+)?$")


@dataclass(frozen=True, slots=True)
class Step:
    """The nodes of one step, in topological order.

    Attributes
    ----------
    phases : mapping of str to str
        Phase by the node's name.
    updates : set of str
        The nodes that write results computed from gradients to variables.
    """

    nodes: tuple[Node, ...]
    phases: Mapping[str, str]
    updates: frozenset[str]

    @property
    def trains(self) -> bool:
        """Whether the graph contains a backward pass."""
        return "backward" in self.phases.values()


def find_step(graph: FlatGraph, *, training: bool) -> Step:
    """Return the nodes that a training step runs or, without ``training``, a forward pass.

    Raises
    ------
    GraphError
        The graph has no input.
    """
    nodes = graph.nodes
    gradients = {n.name for n in nodes.values() if is_gradient(n)}
    # Follow controls too: an optimizer reads its state again after writing it.
    later = downstream(nodes, gradients, controls=True)
    own = bool(gradients) and training
    names = upstream(nodes, _updates(nodes, later)) if own else _forward(graph, gradients)
    step = in_order(nodes, _with_rounds(graph, names))
    inputs = [node.name for node in step if is_input(node)]
    if not inputs:
        raise GraphError(
            f"no placeholder among the {len(step)} nodes of the step; export a graph with an "
            "input, such as tf.compat.v1.placeholder or a function's argument"
        )
    if not own:
        # A running average that a forward pass updates is not a step of an optimizer.
        step = [node for node in step if tensorflow_kind(node.op) != "Update"]
        return Step(tuple(step), {node.name: "forward" for node in step}, frozenset())
    # The remaining nodes serve an optimizer: its rates, and its state before the gradient.
    forward = (downstream(nodes, inputs) | upstream(nodes, gradients, controls=False)) - later
    phases = {node.name: _phase(node, gradients, forward) for node in step}
    updates = {n.name for n in step if n.name in later and tensorflow_kind(n.op) == "Update"}
    return Step(tuple(step), phases, frozenset(updates))


def is_gradient(node: Node) -> bool:
    """Return whether a node certainly belongs to the backward pass."""
    # Values that a loop's forward pass saves are named after the backward pass.
    if node.op in ("Const", "EmptyTensorList"):
        return False
    return bool(_SCOPE.search(node.name) or _GRADIENT_OP.search(node.op))


def is_input(node: Node) -> bool:
    """Return whether a node provides data for a step; file names are not data."""
    types = [node.dtype("dtype")]
    if "output_types" in node.attr:
        types = list(node.attr["output_types"].list.type)
    return node.op in INPUTS and not is_variable(node) and any(t != STRING for t in types)


def list_inputs(step: Step, values: Mapping[str, Value]) -> list[str]:
    """Return the data tensors that a step reads, including labels."""
    return [t for node in step.nodes if is_input(node) for t in node.outputs(values)]


def _updates(nodes: Graph, later: AbstractSet[str]) -> list[str]:
    """Return the results of a training step: updates by gradients, or else the gradients."""
    updates = [
        name
        for name in later
        if tensorflow_kind(nodes[name].op) == "Update" and _floats(nodes[name])
    ]
    if updates:
        return updates
    return sorted(later - _read(nodes))


def _floats(node: Node) -> bool:
    """Return whether an update may be that of a weight: a step counter is not."""
    return node.op != "AssignVariableOp" or node.dtype("dtype") not in (3, 9)


def _forward(graph: FlatGraph, gradients: AbstractSet[str]) -> set[str]:
    """Return the nodes that the signature's results need, or else all that the inputs reach."""
    nodes = graph.nodes
    if graph.outputs:
        return upstream(nodes, map(producer, graph.outputs))
    fed = downstream(nodes, [n.name for n in nodes.values() if is_input(n)])
    fed -= downstream(nodes, gradients)
    # A traced function returns these; its other unread nodes have no effect.
    returned = {name for name in fed if _RETURNED.match(name)} - _read(nodes)
    return upstream(nodes, returned or fed, controls=False)


def _with_rounds(graph: FlatGraph, names: set[str]) -> set[str]:
    """Add the bounds of loops among the nodes, and values passed between their iterations."""
    while True:
        loops = {loop for name in names for loop in graph.nodes[name].loops}
        more = {producer(graph.rounds[loop]) for loop in loops}
        more |= {
            producer(left)
            for loop, start, left in graph.carried
            if loop in loops and producer(start) in names
        }
        if more & graph.nodes.keys() <= names:
            return names
        names = names | upstream(graph.nodes, more, controls=False)


def _read(nodes: Graph) -> set[str]:
    """Return the nodes whose output another node reads."""
    return {producer(tensor) for node in nodes.values() for tensor in node.inputs}


def _phase(node: Node, gradients: Container[str], forward: Container[str]) -> str:
    if node.name in gradients:
        return "backward"
    kind = tensorflow_kind(node.op)
    if kind == "Update":
        return "optimizer"
    if node.name in forward:
        return "forward"
    # Nodes computed from gradients belong to the update, except for the products in between.
    return "backward" if kind in MATRIX_KINDS else "optimizer"
