"""By how much the ends of intervals move: of every row, of strangers, of devices measured often.

One margin covers as often as it says over all devices, too seldom on one and too often on another.
A device's own, of its own rows, covers on that device (Mondrian conformal prediction: Vovk,
Gammerman, Shafer, Algorithmic Learning in a Random World, 2005, chapter 4; decision 15).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from presage.system.arrays import Mask, Names

ByLevel = dict[float, float]  # by the lower level of an interval

MIN_DEVICE_ROWS = 100  # rows that margins of its own take


@dataclass(frozen=True)
class Margins:
    """In the unit of what is learnt.

    Attributes
    ----------
    default : ByLevel
        Of every device that has none of its own.
    out_of_domain : ByLevel
        What the ends move further where a job is out of domain.
    devices : tuple of (tuple of float, ByLevel)
        Those of a device, by what networks see of its identity.
    """

    default: ByLevel
    out_of_domain: ByLevel
    devices: tuple[tuple[tuple[float, ...], ByLevel], ...] = ()

    @property
    def total_out_of_domain(self) -> ByLevel:
        """Of a job out of domain, on a device without its own."""
        return {level: self.default[level] + more for level, more in self.out_of_domain.items()}


def split_by_device(asked: Names, known: Names) -> Iterator[tuple[Mask, Mask]]:
    """Which rows asked, and which rows calibrate them: those of the device, or all where few.

    ``asked`` and ``known`` are the devices of rows that need an interval and of rows measured.
    """
    for device in np.unique(asked):
        own = known == device
        yield asked == device, own if own.sum() >= MIN_DEVICE_ROWS else np.ones_like(own)
