"""Measurements of a device from outside the jobs, and the sampler protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One window. Values are None if the driver lacks them; a CPU has only ``foreign_load``.

    Attributes
    ----------
    compute_utilization : float or None
        Share of the window in which the device was computing; None on a CPU, where each job
        counts its own CPU time exactly.
    foreign_load : float or None
        Share of the device used by processes that are not members.
    memory_bytes : Mapping[int, int]
        Maximum device memory, by process id.
    sm_activity, sm_occupancy : float or None
        Mean share of the multiprocessors with a warp on them, and of the warps they could hold.
    power_w : float or None
        Mean power of the complete device.
    sm_clock_mhz : float or None
        Median clock of the multiprocessors.
    throttled : bool or None
        Whether power or heat reduced the clocks at any moment.
    """

    compute_utilization: float | None
    foreign_load: float | None
    memory_bytes: Mapping[int, int] = field(default_factory=dict)
    sm_activity: float | None = None
    sm_occupancy: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    throttled: bool | None = None


class Sampler(Protocol):
    """Samples a device from ``start`` to ``stop``."""

    def start(self, pids: Collection[int]) -> None:
        """Start a window in which ``pids`` are the members."""

    def stop(self) -> DeviceSample:
        """End the window and return its sample."""
