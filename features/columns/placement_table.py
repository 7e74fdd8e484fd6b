"""Rows to predict, as positions in a table of jobs and a table of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from presage.features.device.device_table import DeviceTable, device_table
from presage.features.job.job_table import JOB_TABLES, JobTable, job_table
from presage.features.placement import Placement
from presage.system.arrays import Array, Ints, Mask

T = TypeVar("T")

_FIRST = np.zeros(1, dtype=np.intp)
_FIRST.setflags(write=False)


@dataclass(frozen=True, eq=False)
class PlacementTable:
    """Placements: each is a job on a share of a device.

    Attributes
    ----------
    job, device : ndarray of int, shape (rows,)
        Positions in ``jobs`` and ``devices``.
    share : ndarray of shape (rows,)
        Fraction of the device's compute, above 0 and at most 1.
    """

    jobs: JobTable
    devices: DeviceTable
    job: Ints
    device: Ints
    share: Array

    def __len__(self) -> int:
        return len(self.job)

    def rows(self, part: slice | Mask) -> PlacementTable:
        """Return some of the rows, with the same jobs and devices."""
        return PlacementTable(
            self.jobs, self.devices, self.job[part], self.device[part], self.share[part]
        )

    def visits(self) -> Visits:
        """Return the operators of each row's job."""
        if len(self) == 1:  # the most frequent case needs no arithmetic
            job = self.job[0]
            start, count = self.jobs.op_starts[job], self.jobs.op_counts[job]
            return Visits(
                np.zeros(count, np.intp), np.arange(start, start + count), np.zeros(1, np.intp)
            )
        counts = self.jobs.op_counts.take(self.job)
        starts = counts.cumsum() - counts
        row = np.arange(len(self)).repeat(counts)
        first = self.jobs.op_starts.take(self.job) - starts
        return Visits(row, np.arange(len(row)) + first.take(row), starts)


class Visits(NamedTuple):
    """Every operator of every row, row by row.

    Attributes
    ----------
    row, op : ndarray of int, shape (visits,)
        Positions of the row, and of the operator in its table of jobs.
    starts : ndarray of int, shape (rows,)
        First visit of each row.
    """

    row: Ints
    op: Ints
    starts: Ints


def placement_table(placements: Sequence[Placement]) -> PlacementTable:
    """Return the placements as a table, in order; a repeated job or device is stored once."""
    job, jobs = _places([placement.job for placement in placements])
    device, devices = _places([placement.device for placement in placements])
    share = np.array([placement.share.fraction for placement in placements], dtype=np.float64)
    # Schedulers that request one job at a time request the same job repeatedly.
    job_rows = JOB_TABLES.get(jobs[0]) if len(jobs) == 1 else job_table(jobs)
    return PlacementTable(job_rows, device_table(devices), job, device, share)


def _places(values: Sequence[T]) -> tuple[Ints, list[T]]:
    """Return each value's position among the distinct values, and the distinct values."""
    if len(values) == 1:
        return _FIRST, [values[0]]
    # Compare identities: hashing a job with a hundred operator rows costs more than it saves.
    different = {id(value): value for value in values}
    place = {key: i for i, key in enumerate(different)}
    places = np.array([place[id(value)] for value in values], dtype=np.intp)
    return places, list(different.values())
