"""What an outcome cannot have measured, whoever reported it: physics, not taste.

Bounds are far from anything that was ever measured (decision 24): a broken clock, a wrong unit or
a wrong data sheet is caught, a job that surprises is learnt from.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Device, Share
from presage.features.placement import Placement
from presage.pipelines.reported.reported_outcomes import SaidJob

NO_JOB = "no such job or device"
TOO_FAST, TOO_SLOW = "faster than the device can", "slower by far than the device is"
TOO_MUCH_MEMORY, TOO_LITTLE_MEMORY = "more memory than there is", "less memory than it must hold"
IDLE = "steps on an idle device"
LONGER = "a step longer than the whole job"

# Of the time and of the bytes that physics gives: it counts operators that a compiler may fuse.
LEAST_OF_PRIOR = 0.1
MOST_OF_ROOFLINE = 1e6
# A step that takes less, or more, at full speed is of no job, or of no device.
LEAST_ROOFLINE_S, MOST_ROOFLINE_S = 1e-9, 86_400.0
MOST_BYTES = 2**53  # beyond it a float64 does not count bytes

_ROOFLINE, _LIVE, _PRIOR = map(
    columns("full").index, ("roofline_s", "peak_live_bytes", "memory_prior_bytes")
)

Placed = tuple[int, str, float]  # position of a job, data sheet, fraction of the device
Fault = tuple[str, str]  # the rule, and how it is broken


@dataclass(frozen=True, slots=True)
class Physics:
    """What a step takes at least, and holds, by operators and data sheet alone."""

    is_finite: bool
    roofline_s: float
    peak_live_bytes: float
    memory_prior_bytes: float

    @property
    def fault(self) -> str:
        """Why there is no such job on such a device; "" if there may be."""
        if not self.is_finite:
            return "its operators add up to more than a number can hold"
        if not LEAST_ROOFLINE_S <= self.roofline_s <= MOST_ROOFLINE_S:
            return f"at full speed a step would take {self.roofline_s:.3g} s"
        return "" if self.memory_prior_bytes > 0 else "its job would take no memory"


def implausible(
    rows: pd.DataFrame, jobs: Sequence[SaidJob], devices: Mapping[str, Device]
) -> list[Fault | None]:
    """Return for each row of ``Reported.rows`` why it is implausible; None if it is plausible.

    Jobs beside must be possible, too.
    """
    told = rows.to_dict("records")
    placed = [
        [(job, row["machine"], share) for job, share, _ in (_itself(row), *row["neighbours"])]
        for row in told
    ]
    physics = _physics(list(dict.fromkeys(chain.from_iterable(placed))), jobs, devices)
    return [
        _fault(row, [physics[one] for one in of_row], devices[row["machine"]])
        for row, of_row in zip(told, placed, strict=True)
    ]


def _itself(row: Mapping[Hashable, Any]) -> tuple[int, float, str]:
    return row["job"], row["share"], row["sharing_mode"]


def _physics(
    placed: Sequence[Placed], jobs: Sequence[SaidJob], devices: Mapping[str, Device]
) -> dict[Placed, Physics]:
    if not placed:
        return {}
    with np.errstate(all="ignore"):  # what overflows is not finite, and is said to be so
        found = matrix(
            [Placement(jobs[job].features, devices[on], Share(share)) for job, on, share in placed]
        )
    finite: list[bool] = [bool(np.isfinite(row).all()) for row in found]
    return {
        one: Physics(ok, *map(float, row[[_ROOFLINE, _LIVE, _PRIOR]]))
        for one, ok, row in zip(placed, finite, found, strict=True)
    }


def _fault(row: Mapping[Hashable, Any], members: Sequence[Physics], device: Device) -> Fault | None:
    for one in members:
        if one.fault:
            return NO_JOB, one.fault
    return _step_fault(row, members[0]) or _memory_fault(row, members[0], device)


def _step_fault(row: Mapping[Hashable, Any], physics: Physics) -> Fault | None:
    step_s, runtime_s, ran = row["step_time_median_s"], row["runtime_s"], row["failure"] == ""
    # A job that failed may have had no time to measure: its zeros are no measurements.
    if step_s is None or not (ran or step_s > 0):
        return None
    told, roofline_s = f"step_time_median_s={step_s:.6g}", physics.roofline_s
    if step_s < LEAST_OF_PRIOR * roofline_s:
        return TOO_FAST, (
            f"{told} is below {LEAST_OF_PRIOR:g} of the roofline's {roofline_s:.6g}; is it in "
            "seconds, and of this batch?"
        )
    if step_s > MOST_OF_ROOFLINE * roofline_s:
        return TOO_SLOW, (
            f"{told} is above {MOST_OF_ROOFLINE:g} times the roofline's {roofline_s:.6g}; is it "
            "in seconds, and the data sheet right?"
        )
    if runtime_s is not None and step_s > runtime_s > 0:
        return LONGER, f"{told} is above runtime_s={runtime_s:.6g}"
    if ran and row["compute_utilization"] == 0:
        return IDLE, f"{told} at compute_utilization=0; leave out what was not measured"
    return None


def _memory_fault(row: Mapping[Hashable, Any], physics: Physics, device: Device) -> Fault | None:
    held, ran = row["memory_peak_bytes"], row["failure"] == ""
    if held is None or not (ran or held > 0):
        return None
    told, live = f"memory_peak_bytes={held:.0f}", physics.peak_live_bytes
    if held > min(device.memory_bytes, MOST_BYTES):
        return TOO_MUCH_MEMORY, f"{told} is above the {device.memory_bytes} of the device"
    if ran and held < max(LEAST_OF_PRIOR * live, 1):
        return TOO_LITTLE_MEMORY, (
            f"{told} is below {LEAST_OF_PRIOR:g} of the {live:.0f} that its tensors take; is it "
            "in bytes?"
        )
    return None
