"""Mixed precision of a job: its modules' forward passes under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# fp32 is a job as built; the others name what autocast computes in.
AUTOCAST_DTYPES = {"bf16": torch.bfloat16}
PRECISIONS = ("fp32", *AUTOCAST_DTYPES)


def apply_precision(module: nn.Module, precision: str) -> None:
    """Make the forward pass of ``module`` compute in ``precision``, from now on.

    The output is cast back to fp32, so losses need not know. On the meta device nothing changes:
    autocast does not exist there, and shapes and operators are the same.

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
    device_type = next(module.parameters()).device.type
    if precision == "fp32" or device_type == "meta":
        return
    autocast = torch.autocast(device_type, dtype=AUTOCAST_DTYPES[precision])
    forward: Callable[..., Tensor] = module.forward

    def forward_under_autocast(*inputs: Any) -> Tensor:
        with autocast:
            return forward(*inputs).float()

    module.forward = forward_under_autocast
