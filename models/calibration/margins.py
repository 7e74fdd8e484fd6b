"""Conformal margins: shifts of the ends of intervals, by device and by what is new in a request.

One margin for all devices has the right coverage on average, but too little on one device and too
much on another. A margin calibrated on the rows of a device has the right coverage on that device
(Mondrian conformal prediction: Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World,
2005, chapter 4; decision 15). Where the job, its device or its framework release was not measured,
intervals are wider: by how much, rows of measured ones tell that were left out of training
(decision 60).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from presage.system.arrays import Mask, Names

ByLevel = dict[float, float]  # by the lower level of an interval

MIN_DEVICE_ROWS = 100  # rows needed for margins of a device's own
# What may be new in a request: a job outside of the training domain, a device or a framework
# release without a measurement.
JOB, DEVICE, RELEASE = NOVELTIES = ("job", "device", "release")


@dataclass(frozen=True)
class Margins:
    """Margins of one predictor and device class, in the unit of the learned target.

    Attributes
    ----------
    default : ByLevel
        Margins of devices without margins of their own.
    novel : mapping of str to ByLevel
        Further widening by what is new, keys of ``NOVELTIES``; a missing one widens nothing.
    devices : tuple of (tuple of float, ByLevel)
        Margins of single devices, by their transformed identity.
    """

    default: ByLevel
    novel: Mapping[str, ByLevel]
    devices: tuple[tuple[tuple[float, ...], ByLevel], ...] = ()

    @property
    def largest(self) -> ByLevel:
        """Margins on a device without margins of its own, with the largest widening."""
        further = combine_widenings(self.novel.values())
        return {level: margin + further.get(level, 0.0) for level, margin in self.default.items()}


def combine_widenings(widenings: Iterable[Mapping[float, float]]) -> ByLevel:
    """Return the widening for several novelties: the largest of each level.

    They are not added, because they overlap: a device is mostly measured with a release of its own.
    """
    largest: ByLevel = {}
    for widening in widenings:
        for level, margin in widening.items():
            largest[level] = max(largest.get(level, 0.0), margin)
    return largest


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
