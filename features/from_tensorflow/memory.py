"""What the bytes of a TensorFlow step are held for, from when each tensor is last read.

Phases run one after the other: TensorFlow may update a weight as soon as its gradient is there,
which the estimate does not count on.
"""

from __future__ import annotations

from collections.abc import Mapping

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.phases import Step, inputs_of
from presage.features.from_tensorflow.value import Value
from presage.features.from_tensorflow.weights import Weights
from presage.features.graph.op_graph import PHASES
from presage.features.graph.op_kinds import TENSORFLOW_FREE, tensorflow_kind
from presage.features.graph.roofline import MATRIX_KINDS
from presage.features.graph.step_memory import MemoryEstimate

# What TensorFlow's gradient functions read of an operator. The rest needs shapes alone.
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
    """The tensors that a step computes, by the memory that holds them.

    Weights, constants and the batch itself are held anyway.
    """

    def __init__(self, step: Step, values: Mapping[str, Value], weights: Weights) -> None:
        self._order = sorted(step.nodes, key=lambda node: PHASES.index(step.phases[node.name]))
        self._values = values
        self._holder: dict[str, str] = {}
        for node in self._order:
            popped = f"{node.name}:0" if node.op == "TensorListPopBack" else ""
            for tensor in node.outputs(values) if node.inputs else []:
                if node.op in TENSORFLOW_FREE or tensor == popped:
                    first = node.inputs[0]
                    self._holder[tensor] = self._holder.get(first, first)
                elif weights.is_data(tensor):
                    self._holder[tensor] = tensor

    def kept_bytes(self, rounds: Mapping[str, int]) -> int:
        """What a backward pass would read of a forward one, of each round of a loop."""
        times: dict[str, int] = {}
        for node in self._order:
            for tensor in self._saved(node):
                times[self._holder.get(tensor, tensor)] = node.times(rounds)
        return sum(self._size(tensor) * count for tensor, count in times.items())

    def live_bytes(self) -> list[int]:
        """Alive while each node runs, each tensor freed after its last reader."""
        last = {}
        for at, node in enumerate(self._order):
            for tensor in (*node.inputs, *node.outputs(self._values)):
                last[self._holder.get(tensor, tensor)] = at
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
        """Bytes of a tensor that has memory of its own."""
        return self._values[tensor].nbytes if self._holder.get(tensor) == tensor else 0


def estimate_memory(step: Step, values: Mapping[str, Value], weights: Weights) -> MemoryEstimate:
    """Bytes of a step as the graph writes it: a whole one, or a forward pass."""
    live = Activations(step, values, weights).live_bytes()
    peak = max(live, default=0)
    read = weights.read_forward(step)
    parameter_bytes = sum(weights.held[name].nbytes for name in read)
    batch_bytes = sum(values[tensor].nbytes for tensor in inputs_of(step, values))
    if not step.trains:
        return MemoryEstimate(
            parameter_bytes, 0, 0, 0, workspace_bytes=peak, batch_bytes=batch_bytes
        )
    # A rate or a counter of steps has no shape.
    state = [v.nbytes for n, v in weights.held.items() if n not in read and v.is_float and v.shape]
    forward = sum(phase == "forward" for phase in step.phases.values())
    activation_bytes = live[forward - 1] if forward else 0
    gradient_bytes = sum(weights.held[name].nbytes for name in weights.trained)
    return MemoryEstimate(
        parameter_bytes=parameter_bytes,
        gradient_bytes=gradient_bytes,
        optimizer_state_bytes=sum(state),
        activation_bytes=activation_bytes,
        workspace_bytes=max(0, peak - max(activation_bytes, gradient_bytes)),
        batch_bytes=batch_bytes,
    )
