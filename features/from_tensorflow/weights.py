"""Weights of a TensorFlow graph, and which of them are trained.

A weight is a variable or, in a frozen graph, a constant. Values computed from weights and
constants only, such as the scale of a folded batch norm, are not data either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from presage.features.from_tensorflow.inputs import is_variable
from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.phases import Step
from presage.features.from_tensorflow.value import Value
from presage.features.graph.op_kinds import TENSORFLOW_FREE

_NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
# Keras' names of the running statistics of a batch norm.
_RUNNING = ("moving_mean", "moving_variance")
_COMPUTED = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a step.

    Attributes
    ----------
    values_by_name : mapping of str to Value
        All weights that a step reads by the node's name, including the optimizer's state.
    trained : set of str
        The weights that a step updates, or would update.
    origin : mapping of str to str
        By the tensor's name, the weight that it views; "" if it is computed from weights.
    constants : set of str
        Tensors that are neither data nor weights.
    """

    values_by_name: Mapping[str, Value]
    trained: frozenset[str]
    origin: Mapping[str, str]
    constants: frozenset[str]

    def is_data(self, tensor: str) -> bool:
        """Return whether a tensor depends on the step's input."""
        return tensor not in self.origin and tensor not in self.constants

    def viewed_by(self, tensors: Iterable[str]) -> list[str]:
        """Return the weights that some tensors view, without duplicates."""
        return [n for n in dict.fromkeys(self.origin.get(t, _COMPUTED) for t in tensors) if n]

    def read_forward(self, step: Step) -> set[str]:
        """Return the weights that a forward pass reads, trained or not."""
        return {
            name
            for node in step.nodes
            if step.phases[node.name] == "forward" and node.op not in TENSORFLOW_FREE
            for name in self.viewed_by(node.inputs)
            if name in self.trained or self.values_by_name[name].shape
        }

    def trained_elements(self, tensors: Iterable[str]) -> int:
        """Return the number of elements of the trained weights that some tensors view."""
        return sum(
            self.values_by_name[n].elements for n in self.viewed_by(tensors) if n in self.trained
        )


def find_weights(step: Step, values: Mapping[str, Value], trainable: Mapping[str, bool]) -> Weights:
    """Return the weights of a step; ``trainable`` holds the file's information, if any."""
    variables = {n.name: values[f"{n.name}:0"] for n in step.nodes if is_variable(n)}
    frozen = not any(value.is_float for value in variables.values())
    values_by_name: dict[str, Value] = dict(variables)
    origin = {f"{name}:0": name for name in variables}
    constants: set[str] = set()
    for node in step.nodes:
        first = f"{node.name}:0"
        if node.op == "Const":
            if frozen and values[first].is_float and values[first].shape:
                origin[first] = node.name
                values_by_name[node.name] = values[first]
            else:
                constants.add(first)
        elif first not in origin and node.inputs:
            _pass_on(node, values, origin, constants)
    return Weights(
        values_by_name,
        frozenset(_trained(step, values_by_name, origin, trainable)),
        origin,
        frozenset(constants),
    )


def _pass_on(
    node: Node, values: Mapping[str, Value], origin: dict[str, str], constants: set[str]
) -> None:
    """Mark a node's outputs like its inputs, if none of them is data."""
    written = node.outputs(values)
    no_data = all(tensor in origin or tensor in constants for tensor in node.inputs)
    if no_data and any(tensor in origin for tensor in node.inputs):
        shown = origin.get(node.inputs[0], _COMPUTED)
        passes = node.op in TENSORFLOW_FREE or node.op == "Cast"
        origin.update(dict.fromkeys(written, shown if passes else _COMPUTED))
        return
    constants.update(name for name in written if values[name].numbers is not None)


def _trained(
    step: Step,
    values_by_name: Mapping[str, Value],
    origin: Mapping[str, str],
    trainable: Mapping[str, bool],
) -> set[str]:
    """Return the weights of the forward pass that a gradient reaches."""
    read: set[str] = set()
    running: set[str] = set()
    updated: set[str] = set()
    for node in step.nodes:
        shown = [origin.get(tensor, _COMPUTED) for tensor in node.inputs]
        if step.phases[node.name] == "forward" and node.op not in TENSORFLOW_FREE:
            read.update(shown)
        if node.op in _NORMALIZATIONS:
            running.update(shown[3:5])
        if node.name in step.updates:
            updated.update(shown[:1])
    candidates = {name for name in read if name and values_by_name[name].is_float}
    if updated:
        return candidates & updated
    return {
        name
        for name in candidates
        if trainable.get(name, name not in running and not name.endswith(_RUNNING))
    }
