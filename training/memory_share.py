"""Memory share of a worker on its GPU, which may change while it trains.

It is ``memory_bytes`` in the configuration of its job's leader. On a cluster the agent of its node
writes it to the worker's folder instead, and changes it as other jobs come and leave.
"""

from __future__ import annotations


class MemoryShare:
    """Share that torch respects now; no limit at first."""

    def __init__(self) -> None:
        self._applied_bytes = 0

    def follow(self, share_bytes: int) -> None:
        """Limit torch to another share, or to none if it is 0; call it between two steps."""
        if share_bytes != self._applied_bytes:
            self._applied_bytes = share_bytes
            limit_memory(share_bytes)


def limit_memory(share_bytes: int) -> None:
    """Limit torch's memory on the current GPU; without a GPU this does nothing.

    Memory that torch caches but does not use is released, since other jobs may need it.

    Parameters
    ----------
    share_bytes : int
        0 for no limit.
    """
    import torch

    if not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    part = share_bytes / total if 0 < share_bytes < total else 1.0
    torch.cuda.set_per_process_memory_fraction(part)
    if part < 1.0:
        torch.cuda.empty_cache()
