"""Mixed precision of a job: its modules' forward passes under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from presage.features.torch_autocast import AUTOCAST_DTYPES, meta_autocast

# fp32 is a job as built; the others name what autocast computes in.
PRECISIONS = ("fp32", *AUTOCAST_DTYPES)


def apply_precision(module: nn.Module, precision: str) -> None:
    """Make the forward pass of ``module`` compute in ``precision``, from now on.

    The output is cast back to fp32, so losses need not know; weights stay fp32. On the meta
    device the casts are those of CUDA's autocast. Losses are not scaled, in fp16 neither.

    Raises
    ------
    ValueError
        If ``precision`` is not one of ``PRECISIONS``.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision {precision!r} is not known to the job zoo; "
            f"use one of {', '.join(PRECISIONS)}"
        )
    if precision == "fp32":
        return
    device_type = next(module.parameters()).device.type
    forward: Callable[..., Tensor] = module.forward

    def forward_under_autocast(*inputs: Any) -> Tensor:
        with (
            meta_autocast(precision)
            if device_type == "meta"
            else torch.autocast(device_type, dtype=AUTOCAST_DTYPES[precision])
        ):
            return forward(*inputs).float()

    module.forward = forward_under_autocast
