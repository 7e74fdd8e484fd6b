"""Memory components of a TensorFlow step, from the last read of each tensor.

Phases run one after the other: TensorFlow may update a weight as soon as its gradient exists, but
the estimate does not assume it.
"""

from __future__ import annotations

from collections.abc import Mapping

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.phases import Step, list_inputs
from presage.features.from_tensorflow.value import Value
from presage.features.from_tensorflow.weights import Weights
from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import TENSORFLOW_FREE, tensorflow_kind
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.step_memory import MemoryEstimate

# Operators whose gradient reads their input, or output, in TensorFlow. Others need shapes only.
_FROM_INPUT = frozenset(
    "Mul Div RealDiv Pow Log Log1p Abs Erf Sin Cos Gelu Softsign Softplus Square "
    "SquaredDifference Maximum Minimum Max Min LeakyRelu MaxPool MaxPool3D Select SelectV2 LRN "
    "ClipByValue L2Loss Xlogy".split()
)
_FROM_OUTPUT = frozenset(
    "Relu Relu6 Elu Selu Sigmoid Tanh Softmax LogSoftmax Exp Sqrt Rsqrt Reciprocal MaxPool "
    "MaxPool3D Max Min SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits".split()
)


class Activations:
    """Tensors that a step computes, by the memory that holds them.

    Weights, constants and the batch are not included, because they are held throughout.
    """

    def __init__(self, step: Step, values: Mapping[str, Value], weights: Weights) -> None:
        self._order = sorted(step.nodes, key=lambda node: PHASES.index(step.phases[node.name]))
        self._values = values
        self._storage: dict[str, str] = {}
        for node in self._order:
            popped = f"{node.name}:0" if node.op == "TensorListPopBack" else ""
            for tensor in node.outputs(values) if node.inputs else []:
                if node.op in TENSORFLOW_FREE or tensor == popped:
                    first = node.inputs[0]
                    self._storage[tensor] = self._storage.get(first, first)
                elif weights.is_data(tensor):
                    self._storage[tensor] = tensor

    def saved_bytes(self, rounds: Mapping[str, int]) -> int:
        """Return the bytes that a backward pass reads of the forward pass, per loop iteration."""
        times: dict[str, int] = {}
        for node in self._order:
            for tensor in self._saved(node):
                times[self._storage.get(tensor, tensor)] = node.times(rounds)
        return sum(self._size(tensor) * count for tensor, count in times.items())

    def live_bytes(self) -> list[int]:
        """Return the bytes alive while each node runs; tensors are freed after the last reader."""
        last = {}
        for at, node in enumerate(self._order):
            for tensor in (*node.inputs, *node.outputs(self._values)):
                last[self._storage.get(tensor, tensor)] = at
        freed: dict[int, int] = {}
        for tensor, at in last.items():
            freed[at] = freed.get(at, 0) + self._size(tensor)
        live, alive = [], 0
        for at, node in enumerate(self._order):
            written = node.outputs(self._values)
            alive += sum(self._size(tensor) for tensor in written)
            live.append(alive)
            alive -= freed.get(at, 0)
        return live

    def _saved(self, node: Node) -> list[str]:
        kind = tensorflow_kind(node.op)
        saved: list[str] = []
        if kind in MATRIX_KINDS or kind == "Normalization" or node.op in _FROM_INPUT:
            saved.extend(node.inputs)
        if kind == "Recurrent" or node.op in _FROM_OUTPUT:
            saved.extend(node.outputs(self._values))
        return saved

    def _size(self, tensor: str) -> int:
        """Return the bytes of a tensor that has its own memory, else 0."""
        return self._values[tensor].nbytes if self._storage.get(tensor) == tensor else 0


def estimate_memory(step: Step, values: Mapping[str, Value], weights: Weights) -> MemoryEstimate:
    """Estimate the bytes of a step as written in the graph: a training step or a forward pass."""
    live = Activations(step, values, weights).live_bytes()
    peak = max(live, default=0)
    read = weights.read_forward(step)
    parameter_bytes = sum(weights.values_by_name[name].nbytes for name in read)
    batch_bytes = sum(values[tensor].nbytes for tensor in list_inputs(step, values))
    if not step.trains:
        return MemoryEstimate(
            parameter_bytes, 0, 0, 0, workspace_bytes=peak, batch_bytes=batch_bytes
        )
        # Learning rates and step counters have no shape.
    state = [
        v.nbytes
        for n, v in weights.values_by_name.items()
        if n not in read and v.is_float and v.shape
    ]
    forward = sum(phase == "forward" for phase in step.phases.values())
    activation_bytes = live[forward - 1] if forward else 0
    gradient_bytes = sum(weights.values_by_name[name].nbytes for name in weights.trained)
    return MemoryEstimate(
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        optimizer_state_bytes=sum(state),
        activation_bytes=activation_bytes,
        workspace_bytes=max(0, peak - max(activation_bytes, gradient_bytes)),
        batch_bytes=batch_bytes,
    )
