"""Activation memory of a forward graph: bytes saved for autograd, or the peak of inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from presage.features.from_onnx.cost import Value
from presage.features.graph.op_kinds import ONNX_FREE, onnx_kind
from presage.features.graph.roofline import MATRIX_KINDS

# Operators whose gradient needs their output, or input, in torch. Others need shapes only.
_FROM_OUTPUT = frozenset("Relu Sigmoid Tanh Softmax LogSoftmax Exp Sqrt Reciprocal".split())
_FROM_INPUT = frozenset(
    "Mul Div Pow Log Abs Erf Sin Cos Gelu Elu Selu Softplus HardSigmoid HardSwish Mish Swish Clip "
    "LeakyRelu PRelu Max Min AveragePool MaxPool Where".split()
)
_VIEWS = ONNX_FREE | {"Transpose", "Slice", "Split", "Expand"}  # share the memory of their input
# Bytes per output element that a kernel saves in addition to its output: the position of a
# maximum, the mask of a dropout, and the gates and cells of every step.
_SAVED_BY_KERNEL = {"MaxPool": 8, "Dropout": 1, "LSTM": 20, "GRU": 12, "RNN": 4}


class Activations:
    """Outputs of a model's operators, by the memory that holds them.

    Parameters
    ----------
    values : mapping of str to Value
        Shapes of all tensors, by name.
    weights : set of str
        Names of tensors that are held throughout the step.
    """

    def __init__(self, model: Any, values: Mapping[str, Value], weights: set[str]) -> None:
        self._nodes = model.graph.node
        self._values = values
        self._held = weights | {value.name for value in model.graph.input}
        self._results = {value.name for value in model.graph.output}
        self._origin: dict[str, str] = {}
        for node in self._nodes:
            if node.op_type in _VIEWS and node.input:
                self._origin |= {name: self._storage(node.input[0]) for name in node.output}

    def saved_bytes(self) -> int:
        """Return the bytes alive at the end of the forward pass, saved for the backward pass.

        What a loss would save is not included, as in a trace without a loss.
        """
        kept = {self._storage(name) for node in self._nodes for name in self._saved(node)}
        return self._size(kept) + sum(map(self._saved_by_kernel, self._nodes))

    def peak_bytes(self) -> int:
        """Return the maximum bytes alive if each value is freed after its last reader."""
        last = {self._storage(n): i for i, node in enumerate(self._nodes) for n in node.input}
        last |= {self._storage(name): len(self._nodes) for name in self._results}
        alive: set[str] = set()
        peak = 0
        for position, node in enumerate(self._nodes):
            alive.update(self._storage(name) for name in node.output)
            peak = max(peak, self._size(alive))
            alive = {name for name in alive if last.get(name, -1) > position}
        return peak

    def _saved(self, node: Any) -> Iterator[str]:
        kind = onnx_kind(node.op_type, node.domain)
        from_input = node.op_type in _FROM_INPUT and not self._has_constant_factor(node)
        if from_input or kind in MATRIX_KINDS or kind == "Normalization":
            yield from node.input
        if node.op_type in _FROM_OUTPUT or kind in ("Attention", "Recurrent"):
            yield from node.output

    def _saved_by_kernel(self, node: Any) -> int:
        """Return the bytes that a kernel saves for itself, outside the values of the graph."""
        out = self._values.get(node.output[0]) if node.output else None
        return _SAVED_BY_KERNEL.get(node.op_type, 0) * out.elements if out else 0

    def _has_constant_factor(self, node: Any) -> bool:
        """Return whether the other factor is one number, which the gradient needs as well."""
        return any(n in self._values and self._values[n].elements == 1 for n in node.input[1:])

    def _storage(self, name: str) -> str:
        return self._origin.get(name, name)

    def _size(self, names: set[str]) -> int:
        return sum(self._values[n].nbytes for n in names - self._held if n in self._values)
