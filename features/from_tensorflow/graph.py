"""Operator graph of a TensorFlow file: a GraphDef, a SavedModel or a checkpoint's .meta.

TensorFlow is not needed. Weights contribute only shape and type. A training graph (TensorFlow 1's
with gradients and updates, or a traced training step) is used as it is; to a forward pass
:mod:`presage.features.graph.backward` adds the rest.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from presage.errors import GraphError
from presage.features.from_tensorflow.file import TensorflowFile, load_file
from presage.features.from_tensorflow.functions import FlatGraph, flatten
from presage.features.from_tensorflow.inputs import Sizes
from presage.features.from_tensorflow.memory import Activations, estimate_memory
from presage.features.from_tensorflow.node import upstream
from presage.features.from_tensorflow.operator import make_operator
from presage.features.from_tensorflow.phases import Step, find_step, list_inputs
from presage.features.from_tensorflow.shapes.infer import infer_shapes
from presage.features.from_tensorflow.value import Value
from presage.features.from_tensorflow.weights import Weights, find_weights
from presage.features.graph.backward import training_step
from presage.features.graph.graph_file import graph_errors
from presage.features.graph.op_graph import OpGraph, OpNode, merge_equal
from presage.features.graph.op_kinds import TENSORFLOW_FREE

# Operators that pass on shape and numbers, but no gradients.
_STOPS = frozenset({"StopGradient", "PreventGradient", "ZerosLike", "OnesLike"})


def read_tensorflow(
    path: Path,
    *,
    batch_size: int,
    dims: Mapping[str, int] | None = None,
    optimizer: str = "sgd",
    training: bool = True,
) -> OpGraph:
    """Read the operator graph of the model at ``path``.

    Parameters
    ----------
    path : Path
        A binary GraphDef, a text GraphDef (.pbtxt), a SavedModel's file or folder, a .meta file.
    batch_size : int
        Replaces the first dimension of every placeholder, if it is open.
    dims : mapping of str to int, optional
        Values of other open dimensions as "placeholder:axis", or "placeholder" for all of one;
        iterations of a loop without a fixed number, by the loop's name.
    optimizer : {"sgd", "adam", "adamw"}
        Optimizer of a training job, if the graph has no updates.
    training : bool
        Whether the job trains; if not, only the forward pass counts.

    Raises
    ------
    GraphError
        The file is missing, truncated, not TensorFlow's, or leaves a shape open; a dimension is
        less than 1; no placeholder provides data.
    """
    with graph_errors(path):
        sizes = Sizes(batch_size, dims or {})
        return _read(load_file(path), sizes, optimizer, training=training)


def _read(file: TensorflowFile, sizes: Sizes, optimizer: str, *, training: bool) -> OpGraph:
    graph = flatten(file.graph, file.outputs)
    step = find_step(graph, training=training)
    values = infer_shapes(step.nodes, sizes)
    weights = find_weights(step, values, file.trains)
    rounds = _rounds(graph, step, values, sizes)
    needing = _needing_gradient(graph, step, values, weights)
    operators = list(_operators(step, values, weights, rounds, needing))
    parameters = [weights.values_by_name[name].elements for name in sorted(weights.trained)]
    elements = max(1, _input_elements(step, values, weights) // sizes.batch_size)
    memory = estimate_memory(step, values, weights)
    if training and not step.trains:
        return training_step(
            operators,
            parameter_sizes=parameters,
            weight_bytes=memory.parameter_bytes,
            activation_bytes=Activations(step, values, weights).saved_bytes(rounds),
            batch_bytes=memory.batch_bytes,
            input_elements=elements,
            optimizer=optimizer,
        )
    return OpGraph(
        nodes=merge_equal(node for node, _ in operators),
        parameters=sum(parameters),
        peak_live_bytes=memory.peak_bytes,
        input_elements=elements,
        memory=memory,
    )


def _operators(
    step: Step,
    values: Mapping[str, Value],
    weights: Weights,
    rounds: Mapping[str, int],
    needing: Container[str],
) -> Iterator[tuple[OpNode, bool]]:
    """Yield each operator, and whether the data it reads needs a gradient."""
    for node in step.nodes:
        written = node.outputs(values)
        # A constant of the graph is computed once, or never.
        fixed = written and not any(weights.is_data(t) or t in weights.origin for t in written)
        count = node.times(rounds)
        if count and node.op not in TENSORFLOW_FREE and not fixed:
            data_needs_gradient = any(
                t in needing and weights.origin.get(t) not in weights.trained for t in node.inputs
            )
            phase = step.phases[node.name]
            yield make_operator(node, phase, values, weights, count), data_needs_gradient


def _needing_gradient(
    graph: FlatGraph, step: Step, values: Mapping[str, Value], weights: Weights
) -> set[str]:
    """Return the tensors that a gradient passes on its way to a trained weight."""
    needing = {tensor for tensor, name in weights.origin.items() if name in weights.trained}
    while True:
        for node in step.nodes:
            if node.op not in _STOPS and any(t in needing for t in node.inputs):
                needing.update(t for t in node.outputs(values) if values[t].is_float)
        # An iteration reads the results of the previous one.
        carried = {start for _, start, left in graph.carried if left in needing}
        if carried <= needing:
            return needing
        needing |= carried


def _input_elements(step: Step, values: Mapping[str, Value], weights: Weights) -> int:
    """Return the elements of the model's input; labels, which only the loss reads, do not count."""
    by_name = {node.name: node for node in step.nodes}
    inputs = list_inputs(step, values)
    learns = [
        node.name
        for node in step.nodes
        if step.phases[node.name] == "forward"
        and node.op not in TENSORFLOW_FREE
        and weights.trained_elements(node.inputs)
    ]
    read = {t for name in upstream(by_name, learns, controls=False) for t in by_name[name].inputs}
    fed = [tensor for tensor in inputs if tensor in read] or inputs
    return sum(values[tensor].elements for tensor in fed)


def _rounds(
    graph: FlatGraph, step: Step, values: Mapping[str, Value], sizes: Sizes
) -> dict[str, int]:
    """Return the number of iterations of each loop.

    Raises
    ------
    GraphError
        Neither the graph nor the given dimensions determine it.
    """
    rounds = {}
    for loop in dict.fromkeys(name for node in step.nodes for name in node.loops):
        bound = values.get(graph.rounds[loop])
        numbers = bound.integers() if bound is not None else None
        # A gradient loop iterates as often as its forward loop.
        short = loop.rpartition("/")[2].removesuffix("_grad")
        size = sizes.dims.get(loop, sizes.dims.get(short))
        if numbers and numbers[0] >= 0:
            size = numbers[0]
        if size is None:
            raise GraphError(
                f"loop {loop!r} has a data-dependent number of iterations; pass --dim {short}=N "
                "with that number"
            )
        rounds[loop] = size
    return rounds
