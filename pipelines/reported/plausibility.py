"""Physical limits that reveal an invalid outcome, independent of its reporter.

The limits are far from all measurements so far (decision 24): they reject a broken clock, a wrong
unit or a wrong data sheet, while surprising jobs are used for training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from presage.features.columns.schema import TABLE_ROWS, columns, matrix
from presage.features.device.device import Device, Share
from presage.features.placement import Placement
from presage.pipelines.reported.reported_outcomes import ReportedJob

NO_JOB = "no such job or device"
TOO_FAST, TOO_SLOW = "faster than the device can", "slower by far than the device is"
TOO_MUCH_MEMORY, TOO_LITTLE_MEMORY = "more memory than there is", "less memory than it must hold"
IDLE = "steps on an idle device"
LONGER = "a step longer than the whole job"

# Fraction of the time and bytes that physics gives: it counts operators that a compiler may fuse.
LEAST_OF_PRIOR = 0.1
MOST_OF_ROOFLINE = 1e6
# No job on any device has a step outside these limits at full speed.
LEAST_ROOFLINE_S, MOST_ROOFLINE_S = 1e-9, 86_400.0
MOST_BYTES = 2**53  # beyond it a float64 does not count bytes

_ROOFLINE, _LIVE, _PRIOR = map(
    columns("full").index, ("roofline_s", "peak_live_bytes", "memory_prior_bytes")
)

_READ = (
    "job", "machine", "share", "colocated_jobs", "failure", "step_time_median_s", "runtime_s",
    "compute_utilization", "memory_peak_bytes",
)  # fmt: skip

Placed = tuple[int, str, float]  # job position, data sheet, fraction of the device
Fault = tuple[str, str]  # the rule, and the violation


@dataclass(frozen=True, slots=True)
class Physics:
    """Least time and memory of a step, from operators and data sheet."""

    is_finite: bool
    roofline_s: float
    peak_live_bytes: float
    memory_prior_bytes: float

    @property
    def fault(self) -> str:
        """Reason why the job is impossible on the device; "" if it is possible."""
        if not self.is_finite:
            return "its operators add up to more than a number can hold"
        if not LEAST_ROOFLINE_S <= self.roofline_s <= MOST_ROOFLINE_S:
            return f"a step at full speed would take {self.roofline_s:.3g} s"
        return "" if self.memory_prior_bytes > 0 else "its job would take no memory"


def implausible(
    rows: pd.DataFrame, jobs: Sequence[ReportedJob], devices: Mapping[str, Device]
) -> list[Fault | None]:
    """Return for each row of ``Reported.rows`` why it is implausible; None if it is plausible.

    Co-located jobs must be possible, too.
    """
    placed = chain.from_iterable(map(_placements, _records(rows)))
    physics = _physics(list(dict.fromkeys(placed)), jobs, devices)
    return [
        _fault(row, [physics[one] for one in _placements(row)], devices[row["machine"]])
        for row in _records(rows)
    ]


def _records(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the columns that the rules read, one row at a time: millions do not fit in memory."""
    for values in zip(*(rows[name] for name in _READ), strict=True):
        yield dict(zip(_READ, values, strict=True))


def _placements(row: Mapping[str, Any]) -> Iterator[Placed]:
    """Yield the placement of a row's job, and of its co-located jobs."""
    yield row["job"], row["machine"], row["share"]
    for job, share, _ in row["colocated_jobs"]:
        yield job, row["machine"], share


def _physics(
    placed: Sequence[Placed], jobs: Sequence[ReportedJob], devices: Mapping[str, Device]
) -> dict[Placed, Physics]:
    found: dict[Placed, Physics] = {}
    for start in range(0, len(placed), TABLE_ROWS):
        part = placed[start : start + TABLE_ROWS]
        with np.errstate(all="ignore"):  # overflows are reported as not finite
            values = matrix(
                [
                    Placement(jobs[job].features, devices[on], Share(share))
                    for job, on, share in part
                ]
            )
        finite = [bool(row.all()) for row in np.isfinite(values)]
        least = values[:, [_ROOFLINE, _LIVE, _PRIOR]].tolist()
        found |= {one: Physics(ok, *row) for one, ok, row in zip(part, finite, least, strict=True)}
    return found


def _fault(row: Mapping[str, Any], members: Sequence[Physics], device: Device) -> Fault | None:
    for one in members:
        if one.fault:
            return NO_JOB, one.fault
    return _step_fault(row, members[0]) or _memory_fault(row, members[0], device)


def _step_fault(row: Mapping[str, Any], physics: Physics) -> Fault | None:
    step_s, runtime_s, ran = row["step_time_median_s"], row["runtime_s"], row["failure"] == ""
    # A failed job may have had no time to measure: its zeros are not measurements.
    if step_s is None or not (ran or step_s > 0):
        return None
    reported, roofline_s = f"step_time_median_s={step_s:.6g}", physics.roofline_s
    if step_s < LEAST_OF_PRIOR * roofline_s:
        return TOO_FAST, (
            f"{reported} is below {LEAST_OF_PRIOR:g} of the roofline's {roofline_s:.6g}; check "
            "that it is in seconds, and of this batch size"
        )
    if step_s > MOST_OF_ROOFLINE * roofline_s:
        return TOO_SLOW, (
            f"{reported} is above {MOST_OF_ROOFLINE:g} times the roofline's {roofline_s:.6g}; "
            "check that it is in seconds, and the data sheet"
        )
    if runtime_s is not None and step_s > runtime_s > 0:
        return LONGER, f"{reported} is above runtime_s={runtime_s:.6g}"
    if ran and row["compute_utilization"] == 0:
        return IDLE, f"{reported} at compute_utilization=0; leave out values that were not measured"
    return None


def _memory_fault(row: Mapping[str, Any], physics: Physics, device: Device) -> Fault | None:
    peak_bytes, ran = row["memory_peak_bytes"], row["failure"] == ""
    if peak_bytes is None or not (ran or peak_bytes > 0):
        return None
    reported, live = f"memory_peak_bytes={peak_bytes:.0f}", physics.peak_live_bytes
    if peak_bytes > min(device.memory_bytes, MOST_BYTES):
        return TOO_MUCH_MEMORY, f"{reported} is above the device's {device.memory_bytes}"
    if ran and peak_bytes < max(LEAST_OF_PRIOR * live, 1):
        return TOO_LITTLE_MEMORY, (
            f"{reported} is below {LEAST_OF_PRIOR:g} of the {live:.0f} of its tensors; check that "
            "it is in bytes"
        )
    return None
