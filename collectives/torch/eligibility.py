"""Which AllReduces the switch can compute. The answer is the same on all ranks of a job.

It depends on what all ranks of a correct job have in common: operation, type, layout and size. All
other AllReduces run by ring.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ReduceOp

_SUM, _AVG = ReduceOp.SUM, ReduceOp.AVG


def is_eligible(tensor: Tensor, operation: ReduceOp, *, min_bytes: int, max_bytes: int) -> bool:
    """Return whether the switch can compute an AllReduce.

    Parameters
    ----------
    tensor : Tensor
        A dense, contiguous tensor of float32 in the memory of the CPU is eligible.
    operation : ReduceOp
        SUM or AVG is eligible.
    min_bytes, max_bytes : int
        Smallest and largest size that is eligible.
    """
    return (
        min_bytes <= tensor.numel() * 4 <= max_bytes
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and (operation == _SUM or operation == _AVG)
    )


def is_average(operation: ReduceOp) -> bool:
    """Return whether the sum is to be divided by the number of ranks."""
    return bool(operation == _AVG)
