"""Cost of a torch operator: the operator nodes that represent it in the graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from presage.features.from_torch.live import storage_key
from presage.features.from_torch.recurrent import recurrent_flops
from presage.features.graph.op_graph import OpNode
from presage.features.graph.op_kinds import aten_kind, convolution_kind, element_flops

# Lookups read the requested rows, not the table.
_LOOKUPS = ("embedding", "_embedding_bag", "gather", "index_select", "index", "_unsafe_index")


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of a torch operator.

    ``weights`` are the :func:`storage_key` of all parameters and buffers.
    """

    func: Any
    phase: str
    args: tuple[Any, ...]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    weights: AbstractSet[int]

    @property
    def name(self) -> str:
        """Name without namespace and overload."""
        name: str = self.func.overloadpacket.__name__
        return name

    def nodes(self) -> Iterator[OpNode]:
        """Yield one node, two for a product with a bias, up to three for convolution gradients."""
        name = self.name
        if name == "convolution_backward":
            yield from self._convolution_gradients()
        elif name.startswith(("convolution", "_convolution")):
            yield from self._convolution()
        elif name in ("addmm", "baddbmm", "addbmm", "addmv"):
            yield from self._matmul_with_bias()
        else:
            yield self._single()

    def _single(self) -> OpNode:
        name, kind = self.name, self._kind()
        if kind == "MatMul":
            return self._node(kind, matmul_flops(*self.inputs[:2]))
        if kind == "Attention":
            return self._node(kind, _attention_flops(name, self.inputs))
        if kind == "Recurrent" and name.startswith("recurrent"):
            weights = self.args[-2] if name == "recurrent" else self.args[-1]
            data = self.args[0] if name == "recurrent" else self.args[1]
            return self._node(kind, recurrent_flops(name, data, weights))
        if name in _LOOKUPS:
            moved = 2 * _nbytes(self.outputs[:1]) + _nbytes(self._data(self.inputs[1:]))
            return self._node(kind, 0, moved)
        elements = max((t.numel() for t in (*self.inputs, *self.outputs)), default=0)
        return self._node(kind, element_flops(kind, int(elements)))

    def _kind(self) -> str:
        if self.phase == "optimizer":
            return "Update"
        if self.phase == "backward" and _is_bias_gradient(self.name, self.inputs, self.outputs):
            return "BiasAddGrad"
        return aten_kind(self.name)

    def _matmul_with_bias(self) -> Iterator[OpNode]:
        bias, left, right = self.inputs[:3]
        flops, factors = matmul_flops(left, right), (left, right)
        yield self._node("MatMul", flops, read=self._data(factors), own=self._own(factors))
        yield self._bias_add(bias)

    def _convolution(self) -> Iterator[OpNode]:
        image, weight, bias, transposed, groups = *self.args[:3], self.args[6], self.args[8]
        flops = _convolution_flops(image, weight, self.outputs[0], transposed)
        kind = convolution_kind(weight.shape[2:], groups, weight.shape[1])
        yield self._node(kind, flops, own=[weight], read=[image])
        if isinstance(bias, Tensor):
            yield self._bias_add(bias)

    def _bias_add(self, bias: Tensor) -> OpNode:
        """Return the node of a fused bias, which counts an operator and moves no bytes."""
        out = self.outputs
        return self._node("BiasAdd", out[0].numel(), 0, suffix=".bias", read=out, own=[bias])

    def _convolution_gradients(self) -> Iterator[OpNode]:
        grad, image, weight = self.args[:3]
        transposed, groups, output_mask = self.args[7], self.args[9], self.args[-1]
        kind = convolution_kind(weight.shape[2:], groups, weight.shape[1])
        # Both gradients are convolutions of the forward one's size.
        flops = _convolution_flops(image, weight, grad, transposed)
        moved = _nbytes([grad, weight, image])
        if output_mask[0]:
            yield self._node(kind, flops, moved, suffix=".input", read=[grad], written=[image])
        if output_mask[1]:
            yield self._node(
                kind, flops, moved, suffix=".weight", read=[grad, image], own=[],
                written=[weight],
            )  # fmt: skip
        if output_mask[2]:
            yield self._node(
                "BiasAddGrad", grad.numel(), _nbytes([grad]), suffix=".bias", read=[grad], own=[],
                written=self.outputs[-1:],
            )  # fmt: skip

    def _node(
        self,
        kind: str,
        flops: int,
        bytes_moved: int | None = None,
        *,
        suffix: str = "",
        read: Sequence[Tensor] | None = None,
        own: Sequence[Tensor] | None = None,
        written: Sequence[Tensor] | None = None,
    ) -> OpNode:
        """Return a node of this call; omitted arguments default to all tensors of the call."""
        if bytes_moved is None:
            bytes_moved = _nbytes(self.inputs) + _nbytes(self.outputs)
        read = self._data(self.inputs) if read is None else read
        own = self._own(self.inputs) if own is None else own
        return OpNode(
            op=f"{self.func.namespace}.{self.name}{suffix}",
            kind=kind,
            phase=self.phase,
            input_elements=_elements(read),
            output_elements=_elements(self.outputs if written is None else written),
            parameters=_elements(own),
            flops=int(flops),
            bytes_moved=int(bytes_moved),
        )

    def _data(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in tensors if storage_key(t) not in self.weights]

    def _own(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t for t in tensors if storage_key(t) in self.weights]


def _elements(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def _nbytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes in memory: a broadcast view is read once."""
    return sum(min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in tensors)


def _is_bias_gradient(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Return whether it is a backward sum over all dimensions but the last: a bias gradient."""
    return (
        name == "sum"
        and inputs[0].ndim >= 2
        and outputs[0].numel() == inputs[0].shape[-1]
        and outputs[0].ndim == inputs[0].ndim
    )


def matmul_flops(left: Tensor, right: Tensor) -> int:
    """Count a multiply-add for every element of the left factor and column of the right one."""
    columns = right.shape[-1] if right.ndim > 1 else 1
    return 2 * int(left.numel()) * int(columns)


def _convolution_flops(image: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> int:
    """Count a multiply-add for every kernel element at every position."""
    places = image if transposed else out
    channels = weight.shape[1]  # already divided by groups, in both layouts
    return 2 * int(places.numel()) * int(channels) * math.prod(weight.shape[2:])


def _attention_flops(name: str, inputs: Sequence[Tensor]) -> int:
    """Count two products forward; five backward, where the scores are computed again."""
    backward = name.endswith("_backward")
    query, key, value = inputs[1:4] if backward else inputs[:3]
    pairs = math.prod(query.shape[:-1]) * int(key.shape[-2])
    width, value_width = int(query.shape[-1]), int(value.shape[-1])
    return pairs * (6 * width + 4 * value_width if backward else 2 * (width + value_width))
