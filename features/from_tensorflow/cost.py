"""FLOPs of TensorFlow operators that multiply matrices, and of optimizer updates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.shapes.einsum import einsum_flops
from presage.features.from_tensorflow.shapes.rules import transposes
from presage.features.from_tensorflow.value import Value
from presage.features.graph.op_kinds import convolution_kind

Operands = Sequence[Value]
Count = Callable[[Node, Operands, Value], int | None]
# FLOPs per element of the variable by update rule; 4 for other rules.
_UPDATE_FLOPS = {
    "GradientDescent": 2, "ProximalGradientDescent": 6, "Momentum": 4, "KerasMomentum": 4,
    "Adagrad": 5, "AdagradV2": 6, "Adadelta": 12, "Adam": 12, "AdaMax": 10, "AdamWithAmsgrad": 13,
    "RMSProp": 10, "CenteredRMSProp": 13, "Ftrl": 12, "FtrlV2": 12,
}  # fmt: skip


def matrix_flops(node: Node, operands: Operands, out: Value) -> int | None:
    """Return the FLOPs of an operator of a matrix kind; a multiply-add counts as two.

    Returns
    -------
    int or None
        None if the FLOPs cannot be counted: the operator is then treated as unknown.
    """
    count = COUNTS.get(node.op)
    try:
        return None if count is None else count(node, operands, out)
    except IndexError:  # fewer operands or dimensions than a valid file has
        return None


def update_flops(node: Node, elements: int) -> int:
    """Return the FLOPs of an operator that updates ``elements`` of a variable."""
    rule = re.sub(r"^(Resource)?(Sparse)?Apply", "", node.op)
    return elements * (1 if node.op.startswith("Assign") else _UPDATE_FLOPS.get(rule, 4))


def _matmul(node: Node, operands: Operands, out: Value) -> int:
    left = operands[0].shape
    return 2 * out.elements * (left[-2] if transposes(node, "a") else left[-1])


def _einsum(node: Node, operands: Operands, _out: Value) -> int | None:
    return einsum_flops(node.text("equation"), [value.shape for value in operands])


def _convolution(_node: Node, operands: Operands, out: Value) -> int:
    """Count a multiply-add for every kernel element at every position of the output.

    The input channels in the kernel's shape are already divided by groups.
    """
    return 2 * out.elements * math.prod(operands[1].shape[:-1])


def classify_convolution(node: Node, operands: Operands, out: Value) -> str:
    """Return the kind of a convolution; the filter is (*kernel, in, out)."""
    weight = out if "BackpropFilter" in node.op else operands[1]
    groups = weight.shape[-2] if "Depthwise" in node.op else 1
    return convolution_kind(weight.shape[:-2], groups, weight.shape[-2] // groups)


def _depthwise(_node: Node, operands: Operands, out: Value) -> int:
    return 2 * out.elements * math.prod(operands[1].shape[:-2])


def _input_gradient(_node: Node, operands: Operands, _out: Value) -> int:
    return 2 * operands[2].elements * math.prod(operands[1].shape[:-1])


def _filter_gradient(_node: Node, operands: Operands, out: Value) -> int:
    return 2 * operands[2].elements * math.prod(out.shape[:-1])


def _depthwise_input_gradient(_node: Node, operands: Operands, _out: Value) -> int:
    return 2 * operands[2].elements * math.prod(operands[1].shape[:-2])


def _depthwise_filter_gradient(_node: Node, operands: Operands, out: Value) -> int:
    return 2 * operands[2].elements * math.prod(out.shape[:-2])


def _block_lstm(_node: Node, operands: Operands, _out: Value) -> int:
    data, weight = operands[1], operands[4]  # (time, batch, input), (input + hidden, 4 hidden)
    return 2 * math.prod(data.shape[:2]) * weight.elements


def _cudnn(_node: Node, operands: Operands, _out: Value) -> int:
    data, weights = operands[0], operands[3]  # weights and biases of all layers, concatenated
    return 2 * math.prod(data.shape[:2]) * weights.elements


COUNTS: Mapping[str, Count] = {
    "MatMul": _matmul,
    "_FusedMatMul": _matmul,
    "SparseMatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
    "Conv2D": _convolution,
    "_FusedConv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise,
    "_FusedDepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _input_gradient,
    "Conv3DBackpropInputV2": _input_gradient,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
    "Conv2DBackpropFilter": _filter_gradient,
    "Conv3DBackpropFilterV2": _filter_gradient,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
    "BlockLSTM": _block_lstm,
    "BlockLSTMV2": _block_lstm,
    "CudnnRNN": _cudnn,
    "CudnnRNNV2": _cudnn,
    "CudnnRNNV3": _cudnn,
}
