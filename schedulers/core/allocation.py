"""Allocation: the share of one device that a member of a job holds."""

from __future__ import annotations

from typing import NamedTuple

# Shares are integers, in thousandths of a device, so that free capacity is exact.
FULL_DEVICE_MILLI = 1000


class Allocation(NamedTuple):
    """Share of one device.

    Attributes
    ----------
    device : int
        Number of the device in the cluster.
    compute_milli : int
        Thousandths of the device's compute; ``FULL_DEVICE_MILLI`` for all of it.
    memory_bytes : int
        Bytes of the device's memory.
    """

    device: int
    compute_milli: int
    memory_bytes: int
