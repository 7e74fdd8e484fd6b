"""Share of a device's memory for a job, by how full the device is (requirement S4).

The policy ``elastic`` uses it with ``jobs_per_device`` of 2 or more. By default a job has its
devices to itself. Under ``sharing`` and ``packing`` a job gets its predicted bound.
"""

from __future__ import annotations

from collections.abc import Sequence


def memory_share_bytes(
    bound_bytes: int, capacity_bytes: int, running_bound_bytes: Sequence[int] = ()
) -> int:
    """Return the bytes of a device's memory that one more job gets; 0 if it has to wait.

    The first job on a device gets all of its memory. The shares decrease as the device fills, but
    never below the predicted bounds, since a job would run out of memory.

    Parameters
    ----------
    bound_bytes : int
        Predicted upper bound of the job's memory.
    capacity_bytes : int
        Memory of the device.
    running_bound_bytes : sequence of int
        The same bound of each job on the device, to which its share may be cut.
    """
    most_bytes = capacity_bytes - sum(running_bound_bytes)
    if bound_bytes > most_bytes or most_bytes <= 0:
        return 0
    equal_bytes = capacity_bytes // (len(running_bound_bytes) + 1)
    return min(max(bound_bytes, equal_bytes), most_bytes)
