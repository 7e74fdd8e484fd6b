"""Mixed precision of a job: its modules' forward passes under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from presage.features.from_torch.autocast import AUTOCAST_DTYPES, meta_autocast

# fp32 is a job as built; so is tf32, which the worker enables in the GPU's libraries. The others
# are precisions of autocast.
PRECISIONS = ("fp32", "tf32", *AUTOCAST_DTYPES)


def apply_precision(module: nn.Module, precision: str, *, inference: bool = False) -> None:
    """Make the forward pass of ``module`` compute in ``precision`` from now on.

    Outputs are cast back to fp32, so losses are unaffected. Trained weights stay fp32. Frozen
    matrices, in ``inference`` or in a module with trained ones (LoRA's base), are stored in
    ``precision``, as is usual for serving or fine-tuning large models. On the meta device the
    casts are those of CUDA's autocast. Losses are not scaled, not even in fp16.

    Raises
    ------
    ValueError
        ``precision`` is not one of ``PRECISIONS``.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"the job zoo has no precision {precision!r}; use one of {', '.join(PRECISIONS)}"
        )
    if precision in ("fp32", "tf32"):
        return
    device_type = next(module.parameters()).device.type
    if inference or any(parameter.requires_grad for parameter in module.parameters()):
        _hold_frozen_matrices_in(AUTOCAST_DTYPES[precision], module)
    forward: Callable[..., Any] = module.forward

    def forward_under_autocast(*inputs: Any) -> Any:
        with (
            meta_autocast(precision)
            if device_type == "meta"
            else torch.autocast(device_type, dtype=AUTOCAST_DTYPES[precision])
        ):
            return tree_map_only(Tensor, _to_single, forward(*inputs))

    module.forward = forward_under_autocast


def _hold_frozen_matrices_in(dtype: torch.dtype, module: nn.Module) -> None:
    for submodule in module.modules():
        if isinstance(submodule, nn.RNNBase):  # its weights must stay contiguous
            continue
        for parameter in submodule.parameters(recurse=False):
            if not parameter.requires_grad and parameter.ndim >= 2:
                parameter.data = parameter.data.to(dtype)


def _to_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
