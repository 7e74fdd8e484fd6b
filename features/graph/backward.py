"""The backward pass and the optimizer of a forward graph, by the rules autograd follows.

For graphs that come without one (ONNX, TensorFlow). What a trace of the same module gives in torch
differs by the fusion of single operators. FLOPs of a step agree to 5 per cent for the small
networks of ``tests/features/test_onnx_graph.py``; the zoo's are in ``docs/benchmarks/graphs.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from presage.errors import GraphError
from presage.features.graph.op_graph import OpGraph, OpNode, merge_equal
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.step_memory import MemoryEstimate

# Per weight tensor: element-wise operators of one update, tensors of state, and tensors read or
# written per update, as torch's single-tensor implementations run them. Adam's counter of
# steps is left out.
OPTIMIZERS = {
    "sgd": (3, 1, 8),  # momentum: v = m v + g; w = w - lr v
    "adam": (7, 2, 19),
    "adamw": (8, 2, 21),
}


def training_step(
    forward: Sequence[tuple[OpNode, bool]],
    *,
    parameter_sizes: Sequence[int],
    weight_bytes: int,
    activation_bytes: int,
    batch_bytes: int,
    input_elements: int,
    optimizer: str,
) -> OpGraph:
    """Forward nodes with the backward pass and the update of every parameter.

    ``forward`` says of each node whether its data needs a gradient: the model's own input does
    not, nor does what is computed from it before the first weight. ``activation_bytes`` are those
    that the backward pass will read; gradients and optimizer state are of fp32.

    Raises
    ------
    GraphError
        The optimizer is not known.
    """
    if optimizer not in OPTIMIZERS:
        raise GraphError(
            f"optimizer {optimizer!r} is not known; use one of {', '.join(OPTIMIZERS)}"
        )
    _, states, _ = OPTIMIZERS[optimizer]
    nodes = [node for node, _ in forward]
    for node, data_needs_gradient in forward:
        nodes.extend(_gradients(node, data_needs_gradient=data_needs_gradient))
    nodes.extend(_updates(parameter_sizes, optimizer))
    parameters = sum(parameter_sizes)
    memory = MemoryEstimate(
        parameter_bytes=weight_bytes,
        gradient_bytes=4 * parameters,
        optimizer_state_bytes=4 * parameters * states,
        activation_bytes=activation_bytes,
        workspace_bytes=_in_passing(forward, parameter_sizes, optimizer),
        batch_bytes=batch_bytes,
    )
    return OpGraph(
        nodes=merge_equal(nodes),
        parameters=parameters,
        peak_live_bytes=memory.peak_bytes,
        input_elements=input_elements,
        memory=memory,
    )


def _in_passing(
    forward: Sequence[tuple[OpNode, bool]], parameter_sizes: Sequence[int], optimizer: str
) -> int:
    """The largest gradient of an activation, or intermediate results of the largest update."""
    _, states, _ = OPTIMIZERS[optimizer]
    activation = max((node.output_elements for node, _ in forward), default=0)
    return 4 * max(activation, states * max(parameter_sizes, default=0) if states > 1 else 0)


def _gradients(node: OpNode, *, data_needs_gradient: bool) -> Iterator[OpNode]:
    if not data_needs_gradient and not node.parameters:
        return
    if node.kind == "BiasAdd":
        yield replace(
            node,
            op=f"{node.op}.grad",
            kind="BiasAddGrad",
            phase="backward",
            parameters=0,
            output_elements=node.parameters,
            bytes_moved=4 * node.input_elements,
        )
        return
    backward = replace(
        node,
        op=f"{node.op}.grad",
        phase="backward",
        input_elements=node.output_elements + node.input_elements,
        output_elements=node.input_elements,
    )
    if node.kind == "Attention":
        # Four products, and the scores once more: they are not kept.
        yield replace(backward, flops=5 * node.flops // 2)
        return
    if node.kind == "Recurrent":
        # The gradient of the data is made on the way to the state's, asked for or not.
        yield replace(backward, flops=2 * node.flops)
        return
    if data_needs_gradient or node.kind not in MATRIX_KINDS:
        yield backward
    if node.kind in MATRIX_KINDS:
        # A product has two factors, hence two gradients of the forward product's cost.
        yield replace(backward, op=f"{node.op}.grad_weight", parameters=0)


def _updates(parameter_sizes: Sequence[int], optimizer: str) -> Iterator[OpNode]:
    operators, _, tensors_moved = OPTIMIZERS[optimizer]
    for size in parameter_sizes:
        for _ in range(operators):
            yield OpNode(
                op=f"{optimizer}.update",
                kind="Update",
                phase="optimizer",
                input_elements=2 * size,
                output_elements=size,
                parameters=size,
                flops=size,
                bytes_moved=4 * size * tensors_moved // operators,
            )
