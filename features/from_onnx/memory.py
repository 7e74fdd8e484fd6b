"""What a forward graph leaves in memory: all that autograd would keep, or the inference peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from presage.features.from_onnx.cost import Value
from presage.features.graph.op_kinds import ONNX_FREE, onnx_kind
from presage.features.graph.roofline import MATRIX_KINDS

# What an operator's gradient is computed from, as torch has it. The rest needs shapes alone.
_FROM_OUTPUT = frozenset("Relu Sigmoid Tanh Softmax LogSoftmax Exp Sqrt Reciprocal".split())
_FROM_INPUT = frozenset(
    "Mul Div Pow Log Abs Erf Sin Cos Gelu Elu Selu Softplus HardSigmoid HardSwish Mish Swish Clip "
    "LeakyRelu PRelu Max Min AveragePool MaxPool Where".split()
)
_VIEWS = ONNX_FREE | {"Transpose", "Slice", "Split", "Expand"}  # of memory that is there
# Bytes per output element that a kernel keeps beside its output: where a maximum came from, what
# a dropout left, and the gates and cells of every step.
_KEPT_BESIDE = {"MaxPool": 8, "Dropout": 1, "LSTM": 20, "GRU": 12, "RNN": 4}


class Activations:
    """The values that a model's operators write, by the memory that holds them.

    Parameters
    ----------
    values : mapping of str to Value
        Shapes of all tensors, by name.
    weights : set of str
        Names of what is held anyway.
    """

    def __init__(self, model: Any, values: Mapping[str, Value], weights: set[str]) -> None:
        self._nodes = model.graph.node
        self._values = values
        self._held = weights | {value.name for value in model.graph.input}
        self._results = {value.name for value in model.graph.output}
        self._origin: dict[str, str] = {}
        for node in self._nodes:
            if node.op_type in _VIEWS and node.input:
                self._origin |= {name: self._holder(node.input[0]) for name in node.output}

    def kept_bytes(self) -> int:
        """Alive when the forward pass ends, for the backward pass to read.

        What a loss would keep of the results is not in it, as it is not in a trace without one.
        """
        kept = {self._holder(name) for node in self._nodes for name in self._saved(node)}
        return self._size(kept) + sum(map(self._saved_beside, self._nodes))

    def peak_bytes(self) -> int:
        """Most alive at once when each value is freed after its last reader."""
        last = {self._holder(n): i for i, node in enumerate(self._nodes) for n in node.input}
        last |= {self._holder(name): len(self._nodes) for name in self._results}
        alive: set[str] = set()
        peak = 0
        for position, node in enumerate(self._nodes):
            alive.update(self._holder(name) for name in node.output)
            peak = max(peak, self._size(alive))
            alive = {name for name in alive if last.get(name, -1) > position}
        return peak

    def _saved(self, node: Any) -> Iterator[str]:
        kind = onnx_kind(node.op_type, node.domain)
        from_input = node.op_type in _FROM_INPUT and not self._by_constant(node)
        if from_input or kind in MATRIX_KINDS or kind == "Normalization":
            yield from node.input
        if node.op_type in _FROM_OUTPUT or kind in ("Attention", "Recurrent"):
            yield from node.output

    def _saved_beside(self, node: Any) -> int:
        """Bytes that a kernel keeps for itself: no value of the graph holds them."""
        out = self._values.get(node.output[0]) if node.output else None
        return _KEPT_BESIDE.get(node.op_type, 0) * out.elements if out else 0

    def _by_constant(self, node: Any) -> bool:
        """Whether the other factor is one number: then it is the gradient's factor too."""
        return any(n in self._values and self._values[n].elements == 1 for n in node.input[1:])

    def _holder(self, name: str) -> str:
        return self._origin.get(name, name)

    def _size(self, names: set[str]) -> int:
        return sum(self._values[n].nbytes for n in names - self._held if n in self._values)
