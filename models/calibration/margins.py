"""Conformal margins: shifts of the ends of intervals, by device and for out-of-domain jobs.

One margin for all devices has the right coverage on average, but too little on one device and too
much on another. A margin calibrated on the rows of a device has the right coverage on that device
(Mondrian conformal prediction: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World,
2005, chapter 4; decision 15).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from presage.system.arrays import Mask, Names

ByLevel = dict[float, float]  # by the lower level of an interval

MIN_DEVICE_ROWS = 100  # rows needed for margins of a device's own


@dataclass(frozen=True)
class Margins:
    """Margins of one predictor and device class, in the unit of the learned target.

    Attributes
    ----------
    default : ByLevel
        Margins of devices without margins of their own.
    out_of_domain : ByLevel
        Further widening of out-of-domain jobs.
    devices : tuple of (tuple of float, ByLevel)
        Margins of single devices, by their transformed identity.
    """

    default: ByLevel
    out_of_domain: ByLevel
    devices: tuple[tuple[tuple[float, ...], ByLevel], ...] = ()

    @property
    def total_out_of_domain(self) -> ByLevel:
        """Margins of an out-of-domain job on a device without margins of its own."""
        return {level: self.default[level] + more for level, more in self.out_of_domain.items()}


def split_by_device(devices: Names, calibration_devices: Names) -> Iterator[tuple[Mask, Mask]]:
    """Yield, for each device, its rows and the rows that calibrate them.

    Calibration rows are those of the device, or all if the device has fewer than
    ``MIN_DEVICE_ROWS``.

    Parameters
    ----------
    devices : ndarray of str, shape (rows,)
        Devices of the rows that need an interval.
    calibration_devices : ndarray of str, shape (calibration rows,)
        Devices of the measured rows.
    """
    for device in np.unique(devices):
        own = calibration_devices == device
        yield devices == device, own if own.sum() >= MIN_DEVICE_ROWS else np.ones_like(own)
