"""Op table: the kind of each torch, ONNX and TensorFlow operator (requirement F1).

The first eleven kinds are the published document's, with TensorFlow's names. The others separate
operators with different cost. An operator that is not in the table is ``Other``: it counts, the
job is predicted, but the job is outside the domain that a release guarantees.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

PUBLISHED_KINDS = (
    "AddV2",
    "BiasAdd",
    "BiasAddGrad",
    "Mul",
    "Conv2D",
    "Concat",
    "Softmax",
    "Relu",
    "MaxPool",
    "AvgPool",
    "MatMul",
)
# The cost of a convolution depends on its kernel: a single-point kernel is a matrix product, one
# per group of channels computes little per byte that it reads, one per channel even less.
CONVOLUTIONS = ("Conv2D", "PointwiseConv2D", "GroupedConv2D", "DepthwiseConv2D")
OP_KINDS = (
    *PUBLISHED_KINDS,
    *CONVOLUTIONS[1:],
    "Attention",
    "Recurrent",
    "Normalization",
    "Embedding",
    "Reduction",
    "Elementwise",
    "Copy",
    "Update",  # all operators of an optimizer
    "Other",
)
# FLOPs per element for operators that are not counted shape by shape; 1 for kinds not listed.
# Round figures suffice, because these operators are bound by memory.
ELEMENT_FLOPS: Mapping[str, int] = {
    "Normalization": 8,
    "Softmax": 5,
    "Copy": 0,
    "Embedding": 0,
    "Concat": 0,
}


def _table(rows: Mapping[str, str]) -> dict[str, str]:
    return {op: kind for kind, ops in rows.items() for op in ops.split()}


# aten names without namespace, overload and the trailing underscore of in-place variants. All
# convolutions are Conv2D here; :func:`convolution_kind` distinguishes them.
ATEN_KINDS: Mapping[str, str] = _table(
    {
        "AddV2": "add",
        "Mul": "mul",
        "Conv2D": "convolution convolution_backward _convolution conv2d mkldnn_convolution",
        "Concat": "cat stack",
        "Softmax": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data "
        "logsumexp _safe_softmax",
        "Relu": "relu threshold_backward hardtanh hardtanh_backward leaky_relu "
        "leaky_relu_backward threshold",
        "MaxPool": "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool2d max_pool1d "
        "adaptive_max_pool2d adaptive_max_pool2d_backward max_pool3d_with_indices "
        "max_pool3d_with_indices_backward",
        "AvgPool": "avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward avg_pool3d avg_pool3d_backward mean",
        "MatMul": "mm bmm addmm baddbmm addbmm matmul linear dot mv addmv _scaled_mm _int_mm "
        "_grouped_mm",
        "Attention": "_scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable",
        "Recurrent": "mkldnn_rnn_layer mkldnn_rnn_layer_backward _thnn_fused_lstm_cell "
        "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _cudnn_rnn "
        "_cudnn_rnn_backward lstm gru rnn_tanh recurrent recurrent_backward",
        "Normalization": "native_batch_norm native_batch_norm_backward native_layer_norm "
        "native_layer_norm_backward native_group_norm native_group_norm_backward "
        "_native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm "
        "cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update "
        "_fused_rms_norm _fused_rms_norm_backward",
        "Embedding": "embedding embedding_dense_backward _embedding_bag _embedding_bag_backward "
        "_embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward gather "
        "scatter scatter_add index_select index_add index index_put _index_put_impl "
        "_unsafe_index _unsafe_index_put",
        "Reduction": "sum amax amin max min argmax argmin var std var_mean norm "
        "linalg_vector_norm cumsum prod any all topk sort",
        "Elementwise": "sub rsub div neg abs exp log log1p sqrt rsqrt reciprocal pow tanh "
        "tanh_backward sigmoid sigmoid_backward gelu gelu_backward silu silu_backward elu "
        "elu_backward softplus softplus_backward hardsigmoid hardsigmoid_backward hardswish "
        "hardswish_backward mish mish_backward erf sin cos clamp clamp_min clamp_max where "
        "masked_fill native_dropout native_dropout_backward bernoulli eq ne lt le gt ge "
        "logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not maximum minimum "
        "addcmul addcdiv lerp sign sgn floor round remainder mse_loss mse_loss_backward "
        "binary_cross_entropy binary_cross_entropy_backward "
        "binary_cross_entropy_with_logits nll_loss_forward nll_loss_backward "
        "nll_loss2d_forward nll_loss2d_backward smooth_l1_loss smooth_l1_loss_backward "
        "huber_loss huber_loss_backward log_sigmoid_forward log_sigmoid_backward glu "
        "glu_backward tril triu logical_xor isnan expm1 square",
        "Copy": "clone copy _to_copy to fill zero zeros zeros_like ones ones_like full full_like "
        "new_zeros new_ones new_full scalar_tensor arange rand randn randint rand_like "
        "randn_like normal uniform constant_pad_nd slice_backward select_backward "
        "slice_scatter select_scatter roll flip repeat upsample_nearest2d "
        "upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward "
        "upsample_bicubic2d upsample_bicubic2d_backward upsample_nearest1d upsample_nearest3d "
        "upsample_linear1d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
        "_upsample_nearest_exact2d eye linspace tril_indices triu_indices "
        "reflection_pad2d reflection_pad2d_backward replication_pad2d im2col col2im "
        "pixel_shuffle channel_shuffle _reshape_copy unfold_backward as_strided_scatter "
        "repeat_interleave native_channel_shuffle empty_like expand_copy view_copy masked_scatter",
    }
)

ONNX_KINDS: Mapping[str, str] = _table(
    {
        "AddV2": "Add Sum",
        "Mul": "Mul",
        "Conv2D": "Conv ConvTranspose ConvInteger QLinearConv",
        "Concat": "Concat",
        "Softmax": "Softmax LogSoftmax",
        "Relu": "Relu LeakyRelu Clip PRelu ThresholdedRelu",
        "MaxPool": "MaxPool GlobalMaxPool",
        "AvgPool": "AveragePool GlobalAveragePool ReduceMean",
        "MatMul": "MatMul Gemm MatMulInteger QLinearMatMul Einsum",
        "Attention": "Attention MultiHeadAttention",
        "Recurrent": "LSTM GRU RNN",
        "Normalization": "BatchNormalization LayerNormalization InstanceNormalization "
        "GroupNormalization LpNormalization RMSNormalization SimplifiedLayerNormalization LRN",
        "Embedding": "Gather GatherElements GatherND Scatter ScatterElements ScatterND OneHot",
        "Reduction": "ReduceSum ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceLogSumExp "
        "ReduceSumSquare ArgMax ArgMin TopK CumSum NonZero",
        "Elementwise": "Sub Div Neg Abs Exp Log Sqrt Reciprocal Pow Tanh Sigmoid Gelu Elu Selu "
        "Softplus Softsign HardSigmoid HardSwish Mish Erf Sin Cos Where Dropout Equal Less "
        "LessOrEqual Greater GreaterOrEqual And Or Not Max Min Mod Floor Ceil Round Sign "
        "IsNaN Celu Swish Trilu",
        "Copy": "Cast Pad Tile Resize Upsample Expand Slice Split Transpose DepthToSpace "
        "SpaceToDepth Range ConstantOfShape RandomNormal RandomUniform RandomNormalLike "
        "RandomUniformLike Bernoulli GridSample",
    }
)

# Operators that compute and move nothing: a new view of the same bytes, or a constant.
ONNX_FREE = frozenset(
    "Constant Identity Reshape Flatten Squeeze Unsqueeze Shape Size CastLike".split()
)


def element_flops(kind: str, elements: int) -> int:
    """Return the FLOPs of an operator that treats each of ``elements`` alike."""
    return ELEMENT_FLOPS.get(kind, 1) * elements


def convolution_kind(kernel: Sequence[int], groups: int, channels: int) -> str:
    """Return the kind of a convolution by spatial kernel sizes, groups, and channels per group."""
    if groups > 1:
        return "DepthwiseConv2D" if channels == 1 else "GroupedConv2D"
    return "Conv2D" if math.prod(kernel) > 1 else "PointwiseConv2D"


def aten_kind(op: str) -> str:
    """Return the kind of an aten operator; in-place variants have the kind of their pure ones."""
    return ATEN_KINDS.get(op.removesuffix("_"), "Other")


def onnx_kind(op_type: str, domain: str = "") -> str:
    """Return the kind of an ONNX operator; operators of other domains than ONNX's are unknown."""
    if domain not in ("", "ai.onnx", "com.microsoft"):
        return "Other"
    return ONNX_KINDS.get(op_type, "Other")


# TensorFlow's operators; gradients have the kind of their forward operator, as published.
TENSORFLOW_KINDS: Mapping[str, str] = _table(
    {
        "AddV2": "Add AddV2 AddN",
        "BiasAdd": "BiasAdd",
        "BiasAddGrad": "BiasAddGrad",
        "Mul": "Mul MulNoNan",
        "Conv2D": "Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2 "
        "Conv3DBackpropFilterV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput "
        "DepthwiseConv2dNativeBackpropFilter _FusedConv2D _FusedDepthwiseConv2dNative",
        "Concat": "ConcatV2 Concat Pack",
        "Softmax": "Softmax LogSoftmax SoftmaxCrossEntropyWithLogits "
        "SparseSoftmaxCrossEntropyWithLogits",
        "Relu": "Relu Relu6 LeakyRelu ReluGrad Relu6Grad LeakyReluGrad",
        "MaxPool": "MaxPool MaxPoolGrad MaxPoolWithArgmax MaxPoolGradWithArgmax MaxPool3D "
        "MaxPool3DGrad",
        "AvgPool": "AvgPool AvgPoolGrad AvgPool3D AvgPool3DGrad Mean",
        "MatMul": "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum _FusedMatMul SparseMatMul",
        "Recurrent": "BlockLSTM BlockLSTMV2 CudnnRNN CudnnRNNV2 CudnnRNNV3",
        "Normalization": "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad "
        "FusedBatchNormGradV2 FusedBatchNormGradV3 LRN LRNGrad",
        "Embedding": "Gather GatherV2 GatherNd ResourceGather ResourceGatherNd ScatterNd OneHot "
        "UnsortedSegmentSum UnsortedSegmentMax TensorScatterUpdate TensorScatterAdd",
        "Reduction": "Sum Max Min Prod All Any EuclideanNorm L2Loss ArgMax ArgMin TopK TopKV2 "
        "Cumsum Cumprod Unique UniqueV2",
        "Elementwise": "Sub Div RealDiv FloorDiv FloorMod Mod TruncateDiv TruncateMod DivNoNan "
        "Xdivy Xlogy Neg Abs Exp Expm1 Log Log1p Sqrt Rsqrt Square Reciprocal Inv Pow Tanh "
        "Sigmoid Gelu Elu Selu Softplus Softsign Erf Erfc Sin Cos Tan Atan2 Sign Floor Ceil Round "
        "Rint Maximum Minimum SquaredDifference Select SelectV2 ClipByValue Equal NotEqual Less "
        "LessEqual Greater GreaterEqual ApproximateEqual LogicalAnd LogicalOr LogicalNot "
        "BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift IsNan IsInf IsFinite "
        "SigmoidGrad TanhGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad SqrtGrad RsqrtGrad "
        "InvGrad ReciprocalGrad MatrixBandPart CheckNumerics FakeQuantWithMinMaxVars "
        "FakeQuantWithMinMaxArgs Bucketize",
        "Copy": "Cast Pad PadV2 MirrorPad MirrorPadGrad Tile Transpose Slice StridedSlice "
        "StridedSliceGrad Split SplitV Unpack Fill ZerosLike OnesLike Range BroadcastTo Reverse "
        "ReverseV2 ReverseSequence RandomShuffle RandomUniform RandomStandardNormal "
        "TruncatedNormal RandomUniformInt StatelessRandomUniform StatelessRandomNormal "
        "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormal "
        "StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 ResizeBilinear "
        "ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeBicubic "
        "ResizeBicubicGrad SpaceToBatchND BatchToSpaceND SpaceToDepth DepthToSpace Empty "
        "TensorListGetItem TensorListSetItem TensorListStack TensorListPushBack TensorListPopBack",
    }
)

# Operators that compute and move nothing: a view, a handle, a constant, a runtime hint.
TENSORFLOW_FREE = frozenset(
    "Const Placeholder PlaceholderV2 PlaceholderWithDefault IteratorGetNext VariableV2 Variable "
    "VarHandleOp TemporaryVariable ReadVariableOp Identity IdentityN Reshape Squeeze ExpandDims "
    "Shape ShapeN VariableShape Size Rank StopGradient PreventGradient Snapshot EnsureShape "
    "Bitcast NoOp Switch RefSwitch Merge Enter Exit BroadcastGradientArgs DynamicStitch "
    "ConcatOffset InvertPermutation Assert Print PrintV2 ScalarSummary HistogramSummary "
    "ImageSummary MergeSummary TensorSummaryV2 VarIsInitializedOp IsVariableInitialized "
    "DestroyTemporaryVariable DisableCopyOnRead IteratorV2 OneShotIterator MutableHashTableV2 "
    "HashTableV2 TensorListFromTensor TensorListReserve EmptyTensorList TensorListLength "
    "TensorListElementShape StatelessRandomGetKeyCounter StatelessRandomGetAlg "
    "StatelessRandomGetKeyCounterAlg".split()
)
_TENSORFLOW_UPDATES = re.compile(
    r"(Resource)?(Sparse)?Apply|(Resource)?Scatter(Add|Sub|Update)|Assign"
)


def tensorflow_kind(op: str) -> str:
    """Return the kind of a TensorFlow operator; writing a variable is an ``Update``."""
    return "Update" if _TENSORFLOW_UPDATES.match(op) else TENSORFLOW_KINDS.get(op, "Other")
