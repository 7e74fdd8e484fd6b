"""Settings of torch that make training reproducible."""

from __future__ import annotations

import torch


def make_torch_deterministic() -> None:
    """Use one thread and deterministic algorithms, so equal seeds give equal bytes."""
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # faster than use_deterministic_algorithms
