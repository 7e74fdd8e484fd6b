"""The op table: which kind an operator of torch or ONNX is (requirement F1).

The first eleven kinds are the published document's, by TensorFlow's names. The rest keep apart
what costs differently. An operator that no row names is ``Other``: it is counted, it is
predicted for, and it puts the job out of the domain that a release vouches for.
"""

from __future__ import annotations

from collections.abc import Mapping

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
OP_KINDS = (
    *PUBLISHED_KINDS,
    "Attention",
    "Recurrent",
    "Normalization",
    "Embedding",
    "Reduction",
    "Elementwise",
    "Copy",
    "Update",  # whatever an optimizer does
    "Other",
)
# FLOPs per element of what is not counted shape by shape, 1 where a kind is not named. Round
# figures do, since these operators are bound by memory.
ELEMENT_FLOPS: Mapping[str, int] = {
    "Normalization": 8,
    "Softmax": 5,
    "Copy": 0,
    "Embedding": 0,
    "Concat": 0,
}


def _table(rows: Mapping[str, str]) -> dict[str, str]:
    return {op: kind for kind, ops in rows.items() for op in ops.split()}


# aten names without namespace, overload and the trailing underscore of in-place variants. A
# convolution of any rank counts as Conv2D: the published table has only that one.
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
        "MatMul": "mm bmm addmm baddbmm addbmm matmul linear dot mv addmv",
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
        "_cudnn_rnn_backward lstm gru rnn_tanh",
        "Normalization": "native_batch_norm native_batch_norm_backward native_layer_norm "
        "native_layer_norm_backward native_group_norm native_group_norm_backward "
        "_native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm "
        "cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update "
        "_fused_rms_norm _fused_rms_norm_backward",
        "Embedding": "embedding embedding_dense_backward _embedding_bag "
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
        "addcmul addcdiv lerp sign floor round remainder mse_loss mse_loss_backward "
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

# Nothing is computed or moved: a new view of the same bytes, or a constant known beforehand.
ONNX_FREE = frozenset(
    "Constant Identity Reshape Flatten Squeeze Unsqueeze Shape Size CastLike".split()
)


def element_flops(kind: str, elements: int) -> int:
    """FLOPs of an operator that does the same to each of ``elements``."""
    return ELEMENT_FLOPS.get(kind, 1) * elements


def aten_kind(op: str) -> str:
    """Kind of an aten operator; in-place variants count as their pure ones."""
    return ATEN_KINDS.get(op.removesuffix("_"), "Other")


def onnx_kind(op_type: str, domain: str = "") -> str:
    """Kind of an ONNX operator; those of other domains than ONNX's own are unknown."""
    if domain not in ("", "ai.onnx", "com.microsoft"):
        return "Other"
    return ONNX_KINDS.get(op_type, "Other")
