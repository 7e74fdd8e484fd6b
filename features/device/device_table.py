"""Data sheets of many devices as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from presage.features.device.device import Device
from presage.features.job.job_description import PRECISIONS
from presage.system.arrays import Matrix
from presage.system.weak_cache import WeakCache

DEVICE_VALUES = (
    "compute_capability", "memory_gb", "cores", "memory_bandwidth_bytes_per_s", "op_overhead_s",
    "context_bytes",
)  # fmt: skip
# Rates of operators: arithmetic at fp32's peak, at the precision's peak, and bytes moved.
RATES = ("fp32_flops_per_s", "peak_flops_per_s", "memory_bandwidth_bytes_per_s")
GIB = 2**30


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """Immutable table of devices.

    Attributes
    ----------
    kinds : tuple of str
    values : ndarray of shape (devices, ``DEVICE_VALUES``)
    rates : ndarray of shape (devices, ``PRECISIONS``, ``RATES``)
        The peak is that of the precision, or of fp32 where the device has no figure for it.
    """

    kinds: tuple[str, ...]
    values: Matrix
    rates: Matrix

    def __len__(self) -> int:
        return len(self.kinds)


def device_table(devices: Sequence[Device]) -> DeviceTable:
    """Return the devices as a table, in order; the table of a single device is cached."""
    return _TABLES.get(devices[0]) if len(devices) == 1 else _table(devices)


def _table(devices: Sequence[Device]) -> DeviceTable:
    sheets = np.array([_sheet(device) for device in devices], dtype=np.float64)
    sheets = sheets.reshape(len(devices), len(DEVICE_VALUES) + len(PRECISIONS) * len(RATES))
    sheets.setflags(write=False)
    rates = sheets[:, len(DEVICE_VALUES) :]
    return DeviceTable(
        tuple([device.kind for device in devices]),
        np.ascontiguousarray(sheets[:, : len(DEVICE_VALUES)]),
        rates.reshape(len(devices), len(PRECISIONS), len(RATES)),
    )


def _sheet(device: Device) -> tuple[float, ...]:
    """Return ``DEVICE_VALUES``, then ``RATES`` for each of ``PRECISIONS``."""
    bandwidth = device.memory_bandwidth_bytes_per_s
    fp32, peaks = device.flops_per_s("fp32"), map(device.flops_per_s, PRECISIONS)
    return (
        device.compute_capability,
        device.memory_bytes / GIB,
        device.cores,
        bandwidth,
        device.op_overhead_s,
        device.context_bytes,
        *chain.from_iterable((fp32, peak, bandwidth) for peak in peaks),
    )


def _table_of_one(device: Device) -> DeviceTable:
    return _table([device])


_TABLES = WeakCache(_table_of_one)
