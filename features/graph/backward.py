"""Derivation of the backward pass and the optimizer from a forward graph, by autograd's rules.

For graphs without a backward pass (ONNX, TensorFlow). A torch trace of the same module differs by
the fusion of single operators. FLOPs of a step agree to 5 per cent for the small networks of
``tests/features/from_onnx/test_onnx_graph.py``; ``docs/benchmarks/graphs.md`` covers the zoo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from presage.errors import GraphError
from presage.features.graph.op_graph import OpGraph, OpNode, merge_equal
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.step_memory import MemoryEstimate

# Per weight tensor: element-wise operators of one update, tensors of state, and tensors read or
# written per update, as in torch's single-tensor implementations. Adam's step counter is not
# counted.
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
    """Add the backward pass and the update of every parameter to forward nodes.

    ``forward`` holds each node with a flag: whether its data needs a gradient. The model's own
    input, and what is computed from it before the first weight, does not. ``activation_bytes``
    are the activations that the backward pass reads; gradients and optimizer state are fp32.

    Raises
    ------
    GraphError
        The optimizer is unknown.
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
        workspace_bytes=_workspace_bytes(forward, parameter_sizes, optimizer),
        batch_bytes=batch_bytes,
    )
    return OpGraph(
        nodes=merge_equal(nodes),
        parameters=parameters,
        peak_live_bytes=memory.peak_bytes,
        input_elements=input_elements,
        memory=memory,
    )


def _workspace_bytes(
    forward: Sequence[tuple[OpNode, bool]], parameter_sizes: Sequence[int], optimizer: str
) -> int:
    """Return the bytes of the largest activation gradient or temporary of an update."""
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
        # Four products, and the scores again, because they are not stored.
        yield replace(backward, flops=5 * node.flops // 2)
        return
    if node.kind == "Recurrent":
        # The data's gradient is always computed on the way to the state's gradient.
        yield replace(backward, flops=2 * node.flops)
        return
    if data_needs_gradient or node.kind not in MATRIX_KINDS:
        yield backward
    if node.kind in MATRIX_KINDS:
        # A product has two factors, hence two gradients with the forward product's cost.
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
