"""What is seen of a device from outside the jobs, and who sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One window. None where the driver does not say; of a CPU nothing but ``foreign_load``.

    Attributes
    ----------
    compute_utilization : float or None
        Share of the window in which the device computed at all; None on a CPU, where each job
        counts its own CPU time exactly.
    foreign_load : float or None
        Share of the device that processes other than the members used.
    memory_bytes : Mapping[int, int]
        Most device memory seen, by process id.
    sm_activity, sm_occupancy : float or None
        Mean share of the multiprocessors with a warp on them, and of the warps they could hold.
    power_w : float or None
        Mean power of the whole device.
    sm_clock_mhz : float or None
        Median clock of the multiprocessors.
    throttled : bool or None
        Whether power or heat held the clocks down at any moment.
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
    """Watches a device from ``start`` to ``stop``."""

    def start(self, pids: Collection[int]) -> None:
        """Begin a window in which ``pids`` are the members."""

    def stop(self) -> DeviceSample:
        """End the window."""
