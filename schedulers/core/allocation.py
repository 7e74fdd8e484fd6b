"""What of a device a member of a job is given."""

from __future__ import annotations

from typing import NamedTuple

FULL_DEVICE_MILLI = (
    1000  # thousandths: shares are integers, so that what is left of a device is exact
)


class Allocation(NamedTuple):
    """A share of a device.

    Attributes
    ----------
    device : int
        Its number in the cluster.
    compute_milli : int
        Thousandths of its compute; ``FULL_DEVICE_MILLI`` for all of it.
    memory_bytes : int
        Of its memory.
    """

    device: int
    compute_milli: int
    memory_bytes: int
