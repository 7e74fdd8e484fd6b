"""Bars of devices (allocation and use per job) and gauges of jobs (measured and predicted)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from presage.schedulers.live.client.elastic_text import LEAVING, usage_per_device
from presage.schedulers.live.ui.figures import ON_NODE, display_state, percent, share, size
from presage.schedulers.live.ui.placements import Placement, placements
from presage.schedulers.v1 import cluster_pb2 as pb

FULL_DEVICE_MILLI = 1000
COLOURS = 8
_PAUSED_WIDTH = 3.0  # % of the compute bar for a paused job, which only has memory


class Segment(NamedTuple):
    """Part of a bar for one job, or for all unlisted jobs; lengths in % of the bar.

    Attributes
    ----------
    job_id : str
        "" for the unlisted jobs.
    worker : str
        Worker of an elastic job; "" for other jobs.
    used : float
        Length of the use, from ``at``; may exceed ``width``.
    peak : float
        Length of the peak use, from ``at``; 0 if there is none.
    """

    job_id: str
    worker: str
    colour: int
    state: str
    at: float
    width: float
    used: float
    peak: float
    title: str


class DeviceBar(NamedTuple):
    """Bar of a device: its compute and memory, divided among jobs.

    Attributes
    ----------
    problem : str
        Why it is withdrawn, apart from its node; "" if it gets jobs.
    reading : str
        Temperature and power; "" if the device does not report them.
    """

    number: int
    kind: str
    compute: list[Segment]
    memory: list[Segment]
    allocated_milli: int
    used_milli: float
    allocated_bytes: int
    used_bytes: int
    memory_bytes: int
    problem: str
    reading: str = ""


class Gauge(NamedTuple):
    """Gauge that compares a measured value with its prediction; in % of the gauge.

    Attributes
    ----------
    more : float
        Predicted remainder, after ``value``.
    mark, bound, peak : float or None
        Predicted median, upper bound, and measured peak.
    exceeded : bool
        Whether the measured value exceeds its bound.
    """

    value: float
    more: float = 0.0
    mark: float | None = None
    bound: float | None = None
    peak: float | None = None
    exceeded: bool = False


def job_colour(job_id: str) -> int:
    """Return the colour of a job, which depends only on its name."""
    return zlib.crc32(job_id.encode()) % COLOURS


def device_bars(node: pb.NodeStatus, jobs: Iterable[pb.JobStatus]) -> list[DeviceBar]:
    """Return the bars of a node's devices, for the jobs on it."""
    by_device: list[list[tuple[pb.JobStatus, Placement]]] = [[] for _ in node.devices]
    for row in jobs:
        for placement in placements(row) if row.phase in ON_NODE else ():
            device = placement.allocation.device
            if placement.node == node.name and device < len(by_device):
                by_device[device].append((row, placement))
    return [
        _device(number, device, rows)
        for number, (device, rows) in enumerate(zip(node.devices, by_device, strict=True))
    ]


def _device(
    number: int, device: pb.DeviceStatus, rows: Sequence[tuple[pb.JobStatus, Placement]]
) -> DeviceBar:
    counted = [(row, one.allocation) for row, one in rows if not one.is_leaving]
    listed_milli = sum(allocation.compute_milli for _, allocation in counted)
    listed_bytes = sum(allocation.memory_bytes for _, allocation in counted)
    # The free capacity accounts for all jobs, including unlisted ones.
    all_milli = FULL_DEVICE_MILLI - device.free_compute_milli
    all_bytes = device.memory_bytes - device.free_memory_bytes
    unlisted = len(set(device.job_ids) - {row.job.job_id for row, _ in rows})
    paused_milli = sum(one.compute_milli for row, one in counted if row.phase == pb.PAUSED)
    unlisted_compute = _unlisted(unlisted, all_milli - listed_milli, share)
    unlisted_memory = _unlisted(unlisted, all_bytes - listed_bytes, size)
    return DeviceBar(
        number,
        device.kind,
        _segments(rows, FULL_DEVICE_MILLI, _compute, unlisted_compute),
        _segments(rows, device.memory_bytes, _memory, unlisted_memory),
        max(0, all_milli - paused_milli),
        sum(usage_per_device(row) for row, _ in rows if row.phase != pb.PAUSED),
        max(0, all_bytes),
        sum(row.memory_bytes // len(placements(row)) for row, _ in rows),
        device.memory_bytes,
        device.reason,
        _reading(device),
    )


def _reading(device: pb.DeviceStatus) -> str:
    texts = (
        f"{device.temperature_c:.0f} °C" if device.HasField("temperature_c") else "",
        f"{device.power_w:.0f} W" if device.HasField("power_w") else "",
    )
    return ", ".join(filter(None, texts))


class _Amounts(NamedTuple):
    allocated: float
    used: float
    peak: float
    text: str


def _compute(row: pb.JobStatus, placement: Placement) -> _Amounts:
    allocation, used = placement.allocation, usage_per_device(row)
    if row.phase == pb.PAUSED:
        text = f"paused, resumes with {share(allocation.compute_milli)}"
        return _Amounts(_PAUSED_WIDTH * FULL_DEVICE_MILLI / 100, 0.0, 0.0, text)
    text = f"{share(allocation.compute_milli)} allocated, {percent(used)} used"
    return _Amounts(allocation.compute_milli, used, 0.0, text)


def _memory(row: pb.JobStatus, placement: Placement) -> _Amounts:
    allocation, devices = placement.allocation, len(placements(row))
    now, peak = row.memory_bytes // devices, row.peak_memory_bytes // devices
    text = f"{size(allocation.memory_bytes)} allocated, {size(now)} used, peak {size(peak)}"
    return _Amounts(allocation.memory_bytes, now, peak, text)


def _unlisted(jobs: int, amount: int, to_text: Callable[[float], str]) -> _Amounts | None:
    """Return the allocation of unlisted jobs; None if there are none."""
    if not jobs or amount <= 0:
        return None
    which = "1 job that is" if jobs == 1 else f"{jobs} jobs that are"
    return _Amounts(amount, 0.0, 0.0, f"{to_text(amount)} allocated to {which} not listed")


def _segments(
    rows: Sequence[tuple[pb.JobStatus, Placement]],
    capacity: float,
    amounts: Callable[[pb.JobStatus, Placement], _Amounts],
    unlisted: _Amounts | None,
) -> list[Segment]:
    by_row = [amounts(row, placement) for row, placement in rows]
    allocated = sum(job.allocated for job in by_row) + (unlisted.allocated if unlisted else 0)
    # More than the capacity is allocated for moments, and by policies that overcommit.
    scale = 100 / max(capacity, allocated, 1)
    found, at = [], 0.0
    for (row, placement), job in zip(rows, by_row, strict=True):
        job_id, worker = row.job.job_id, placement.worker
        lengths = (round(scale * n, 2) for n in (job.allocated, job.used, job.peak))
        width, used, peak = lengths
        state = LEAVING if placement.is_leaving else display_state(row)
        title = f"{f'{job_id} {worker}'.rstrip()}: {job.text}"
        colour, begin = job_colour(job_id), round(at, 2)
        found.append(Segment(job_id, worker, colour, state, begin, width, used, peak, title))
        at += width
    if unlisted is not None:
        width = round(scale * unlisted.allocated, 2)
        segment = Segment("", "", 0, "unlisted", round(at, 2), width, 0.0, 0.0, unlisted.text)
        found.append(segment)
    return found


def compute_gauge(row: pb.JobStatus, prediction: pb.Prediction | None) -> Gauge:
    """Return the gauge of compute on a device: used, allocated and predicted."""
    found, usage_milli = placements(row), usage_per_device(row)
    allocated = found[0].allocation.compute_milli if found else 0
    has_forecast = prediction is not None and prediction.is_predicted
    mark = prediction.compute_milli / 10 if prediction is not None and has_forecast else None
    exceeded = mark is not None and usage_milli / 10 > mark + 5
    used = min(100.0, usage_milli / 10)
    return Gauge(used, mark=mark, bound=allocated / 10, exceeded=exceeded)


def memory_gauge(row: pb.JobStatus) -> Gauge:
    """Return the gauge of memory on all devices: current and peak use, allocated bound."""
    allocated = sum(one.allocation.memory_bytes for one in placements(row))
    scale = max(allocated / 0.9, row.peak_memory_bytes, row.memory_bytes, 1)
    return Gauge(
        100 * row.memory_bytes / scale,
        bound=100 * allocated / scale if allocated else None,
        peak=100 * row.peak_memory_bytes / scale,
        exceeded=bool(allocated) and row.peak_memory_bytes > allocated,
    )


def time_gauge(row: pb.JobStatus, prediction: pb.Prediction | None) -> Gauge | None:
    """Return the gauge of run time: elapsed, remaining, predicted and upper bound.

    None without a forecast, or for a job that is only placed: its remaining time is unknown.
    """
    if prediction is None or not prediction.is_predicted or row.phase == pb.PLACED:
        return None
    if not (math.isfinite(row.remaining_s) and math.isfinite(prediction.slo_s)):
        return None
    ends_s = row.elapsed_s + row.remaining_s
    scale_s = max(1.05 * ends_s, 1.05 * prediction.slo_s, 1e-9)
    return Gauge(
        100 * row.elapsed_s / scale_s,
        more=100 * row.remaining_s / scale_s,
        mark=100 * prediction.runtime_s / scale_s,
        bound=100 * prediction.slo_s / scale_s,
        exceeded=ends_s > prediction.slo_s,
    )
