"""Memory share of a worker on its GPU: ``memory_bytes`` in the configuration of its job's leader.

On a cluster the agent sets ``PRESAGE_MEMORY_BYTES`` instead, which :mod:`presage.progress` applies.
"""

from __future__ import annotations


def limit_memory(share_bytes: int) -> None:
    """Limit torch's memory on the current GPU; without a GPU this does nothing."""
    import torch

    if share_bytes <= 0 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if share_bytes < total:
        torch.cuda.set_per_process_memory_fraction(share_bytes / total)
