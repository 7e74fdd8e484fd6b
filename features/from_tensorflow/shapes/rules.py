"""Shape rules of TensorFlow operators, from their inputs' shapes and small constants.

A rule takes a node and its inputs and returns the shapes of its outputs, or None if they depend on
numbers that the graph does not determine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.shapes.array_rules import ARRAY_RULES
from presage.features.from_tensorflow.shapes.einsum import einsum_shape
from presage.features.from_tensorflow.shapes.windows import WINDOW_RULES, Rule, Shape, channel_axis
from presage.features.from_tensorflow.value import Value


def _same_shape(*positions: int) -> Rule:
    """Return a rule: each output has the shape of one of the inputs."""

    def rule(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
        return [inputs[position].shape for position in positions]

    return rule


def _same_shapes(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [value.shape for value in inputs]


def _broadcast(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [np.broadcast_shapes(*(value.shape for value in inputs))]


def _select(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    # The first version broadcasts its condition from the left: a number per row.
    return [inputs[1].shape] if node.op == "Select" else _broadcast(node, inputs)


def _scalar(_node: Node, _inputs: Sequence[Value]) -> list[Shape]:
    return [()]


def _matmul(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    left, right = inputs[0].shape, inputs[1].shape
    rows = left[-1] if transposes(node, "a") else left[-2]
    columns = right[-2] if transposes(node, "b") else right[-1]
    return [(*np.broadcast_shapes(left[:-2], right[:-2]), rows, columns)]


def transposes(node: Node, side: str) -> bool:
    """Return whether a product transposes its left ("a") or right ("b") operand."""
    return node.flag(f"transpose_{side}") or node.flag("adj_x" if side == "a" else "adj_y")


def _einsum(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    shape = einsum_shape(node.text("equation"), [value.shape for value in inputs])
    return None if shape is None else [shape]


def _bias_gradient(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [(inputs[0].shape[channel_axis(node, len(inputs[0].shape))],)]


def _batch_norm(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    channels = inputs[1].shape
    return [inputs[0].shape, *[channels] * 4, ()]


def _batch_norm_gradient(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    channels = inputs[2].shape
    return [inputs[1].shape, channels, channels, (0,), (0,)]


def _loss(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [inputs[0].shape[:-1], inputs[0].shape]


def _reduce(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    axes, shape = inputs[1].integers(), inputs[0].shape
    if axes is None:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise IndexError(f"axis {axes} of {list(shape)}")
    reduced = {axis % len(shape) for axis in axes}
    keep = node.flag("keep_dims") or node.flag("keepdims")
    return [
        tuple(1 if i in reduced else s for i, s in enumerate(shape) if keep or i not in reduced)
    ]


def _shape_of(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    return [(len(value.shape),) for value in inputs]


def _recurrent(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    """Return the shapes of BlockLSTM over (time, batch, input); input 3 is the hidden state."""
    steps, batch = inputs[1].shape[:2]
    return [(steps, batch, inputs[2].shape[-1])] * 7


def _cudnn(_node: Node, inputs: Sequence[Value]) -> list[Shape]:
    steps, batch = inputs[0].shape[:2]
    state = inputs[1].shape
    # A second direction would double the width, but the file does not distinguish it from a layer.
    return [(steps, batch, state[-1]), state, inputs[2].shape, (0,), (0,)]


_RULES_BY_OPS: Mapping[str, Rule] = {
    "Identity ReadVariableOp StopGradient PreventGradient CheckNumerics Snapshot EnsureShape "
    "Bitcast Print PrintV2 Enter Exit Cast Relu Relu6 LeakyRelu Elu Selu Softplus "
    "Softsign Sigmoid Tanh Gelu Softmax LogSoftmax BiasAdd Neg Abs Exp Expm1 Log Log1p Sqrt Rsqrt "
    "Square Reciprocal Inv Erf Erfc Sin Cos Tan Sign Floor Ceil Round Rint IsNan IsFinite IsInf "
    "LogicalNot Invert ZerosLike OnesLike LRN LRNGrad ReluGrad Relu6Grad LeakyReluGrad EluGrad "
    "SeluGrad SoftplusGrad SoftsignGrad SigmoidGrad TanhGrad SqrtGrad RsqrtGrad InvGrad "
    "ReciprocalGrad MaxPoolGrad MaxPool3DGrad MaxPoolGradWithArgmax ClipByValue AddN Cumsum "
    "Cumprod Reverse ReverseV2 ReverseSequence RandomShuffle MatrixBandPart "
    "FakeQuantWithMinMaxVars FakeQuantWithMinMaxArgs InvertPermutation Bucketize "
    "TensorScatterUpdate TensorScatterAdd": _same_shape(0),
    "ResizeBilinearGrad ResizeBicubicGrad": _same_shape(1),
    "Switch RefSwitch Unique UniqueV2": _same_shape(0, 0),
    "Add AddV2 Sub Mul Div RealDiv FloorDiv FloorMod Mod TruncateDiv TruncateMod Maximum Minimum "
    "Pow SquaredDifference MulNoNan DivNoNan Xdivy Xlogy Atan2 Greater GreaterEqual Less LessEqual "
    "Equal NotEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift "
    "ApproximateEqual": _broadcast,
    "Select SelectV2": _select,
    "IdentityN": _same_shapes,
    "L2Loss Rank Size": _scalar,
    "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 _FusedMatMul SparseMatMul": _matmul,
    "Einsum": _einsum,
    "BiasAddGrad": _bias_gradient,
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3": _batch_norm,
    "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3": _batch_norm_gradient,
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits": _loss,
    "Sum Mean Max Min Prod All Any EuclideanNorm": _reduce,
    "Shape ShapeN VariableShape": _shape_of,
    "BlockLSTM BlockLSTMV2": _recurrent,
    "CudnnRNN CudnnRNNV2 CudnnRNNV3": _cudnn,
}
RULES: Mapping[str, Rule] = {
    **WINDOW_RULES,
    **ARRAY_RULES,
    **{op: rule for ops, rule in _RULES_BY_OPS.items() for op in ops.split()},
}
