"""Automatic mixed precision on the meta device, where ``torch.autocast`` does not exist.

It applies the same casts at the same places, by the lists of CUDA's autocast
(ATen/autocast_mode.h of torch 2.11 and 2.13): products in half precision; norms, losses and other
operators that lose digits, in fp32. A processor's lists are shorter (its norms and softmax take
halves); one graph represents both. Scaling of losses (``torch.amp.GradScaler``), which fp16 may
need to converge, is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from presage.errors import GraphError
from presage.features.from_torch.intercept import Interception

# Data types of autocast, by the precision of a job.
AUTOCAST_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}

_HALF = (
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot "
    "linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell scaled_dot_product_attention lstm.input gru.input rnn_tanh.input rnn_relu.input"
)
_SINGLE = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm "
    "rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim norm.Scalar "
    "norm.ScalarOpt_dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss "
    "nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss "
    "margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss "
    "multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp "
    "upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d "
    "upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
_SINGLE_BY_DTYPE = (  # these read halves and write fp32
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)

# Intel Gaudi's key: stock torch has no kernel for it. It precedes the key of torch_fused.
_INTERCEPTION = Interception("AutocastHPU")


@dataclass(frozen=True, slots=True)
class _Region:
    """A forward pass under autocast; weights are cast once in it, like in autocast's cache."""

    dtype: torch.dtype
    weights: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


_REGION: ContextVar[_Region] = ContextVar("autocast on the meta device")


@contextmanager
def meta_autocast(precision: str) -> Iterator[None]:
    """Run operators on meta tensors in ``precision`` where autocast would.

    Raises
    ------
    GraphError
        ``precision`` is not a key of ``AUTOCAST_DTYPES``.
    """
    if precision not in AUTOCAST_DTYPES:
        raise GraphError(
            f"autocast has no precision {precision!r}; use {' or '.join(AUTOCAST_DTYPES)}"
        )
    token = _REGION.set(_Region(AUTOCAST_DTYPES[precision]))
    try:
        with _INTERCEPTION.enabled():
            yield
    finally:
        _REGION.reset(token)


def _to_half(tensor: Tensor) -> Tensor:
    region = _REGION.get()
    if not _may_cast(tensor) or tensor.dtype == region.dtype:
        return tensor
    is_weight = tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32
    if not is_weight:
        return tensor.to(region.dtype)
    if id(tensor) not in region.weights:
        region.weights[id(tensor)] = (tensor, tensor.to(region.dtype))
    return region.weights[id(tensor)][1]


def _to_single(tensor: Tensor) -> Tensor:
    return tensor.float() if _may_cast(tensor) else tensor


def _may_cast(tensor: Tensor) -> bool:
    return tensor.is_meta and tensor.is_floating_point() and tensor.dtype != torch.float64


def _cast_to_half(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(Tensor, _to_half, (args, kwargs))
    return op(*args, **kwargs)


def _cast_to_single(op: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(Tensor, _to_single, (args, kwargs))
    return op(*args, **kwargs)


def _write_single(op: Any, args: Any, kwargs: Any) -> Any:
    position = [argument.name for argument in op._schema.arguments].index("dtype")
    observe_inputs = args[position] if position < len(args) else kwargs.get("dtype")
    if observe_inputs is not None or not _may_cast(args[0]):
        return op(*args, **kwargs)
    return op(*args[:position], **{**kwargs, "dtype": torch.float32})


def _cast_to_widest(op: Any, args: Any, kwargs: Any) -> Any:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and _may_cast(t)]
    single = any(tensor.dtype == torch.float32 for tensor in tensors)
    return (_cast_to_single if single else _cast_to_half)(op, args, kwargs)


def _catch(names: str, policy: Callable[[Any, Any, Any], Any]) -> None:
    for op in _operators(names.split()):
        _INTERCEPTION.catch(op, lambda *args, op=op, **kwargs: policy(op, args, kwargs))


def _operators(names: Sequence[str]) -> Iterator[Any]:
    """Yield the operators ``name`` or ``name.overload`` that this torch version has."""
    for name in names:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            yield op


_catch(_HALF, _cast_to_half)
_catch(_SINGLE, _cast_to_single)
_catch(_SINGLE_BY_DTYPE, _write_single)
_catch(_WIDEST, _cast_to_widest)
