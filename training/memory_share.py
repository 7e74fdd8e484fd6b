"""Memory share of a job on a GPU: large on an empty GPU, smaller as the GPU fills."""

from __future__ import annotations


def memory_share_bytes(
    bound_bytes: int, capacity_bytes: int, running: int, free_bytes: int
) -> int | None:
    """Return the memory that a job gets on a GPU, or None if the job has to wait.

    The share is ``max(bound, capacity / (running + 1))``, at most what is free. It is never under
    the bound, with less than which the job would run out of memory.

    Parameters
    ----------
    bound_bytes : int
        Predicted upper bound of the job's memory.
    capacity_bytes, free_bytes : int
        Memory of the GPU, and the part of it that is not allocated.
    running : int
        Number of jobs on the GPU.
    """
    if bound_bytes > free_bytes:
        return None
    return min(free_bytes, max(bound_bytes, capacity_bytes // (running + 1)))


def limit_memory(share_bytes: int) -> None:
    """Limit torch's memory on the current GPU; without a GPU this does nothing."""
    import torch

    if share_bytes <= 0 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if share_bytes < total:
        torch.cuda.set_per_process_memory_fraction(share_bytes / total)
