"""Jobs on each device, as a decision goes on to change them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from presage.schedulers.core.capacity.idle_devices import IdleDevices


class Occupants:
    """Jobs on each device, and the devices that are idle.

    Attributes
    ----------
    idle : IdleDevices
        Devices without jobs; it follows :meth:`join` and :meth:`leave`.
    """

    def __init__(self, idle: IdleDevices, allocated: Iterable[tuple[str, Sequence[int]]]) -> None:
        self.idle = idle
        self._jobs: dict[int, list[str]] = {}
        self._devices: dict[str, set[int]] = {}
        for job_id, devices in allocated:
            self._enter(job_id, devices)

    def on(self, device: int) -> Sequence[str]:
        """Return the ids of the jobs on a device, those that came first before others."""
        return self._jobs.get(device, ())

    def devices(self) -> list[int]:
        """Return the devices that have jobs, ascending."""
        return sorted(device for device, jobs in self._jobs.items() if jobs)

    def devices_of(self, job_id: str) -> Collection[int]:
        """Return the devices that a job is on."""
        return self._devices.get(job_id, ())

    def is_shared(self, device: int) -> bool:
        """Return whether a device has several jobs."""
        return len(self.on(device)) > 1

    def join(self, job_id: str, devices: Iterable[int]) -> None:
        """Enter a job on devices that it does not have yet."""
        added = sorted(devices)
        self.idle.take([device for device in added if not self.on(device)])
        self._enter(job_id, added)

    def _enter(self, job_id: str, devices: Sequence[int]) -> None:
        self._devices.setdefault(job_id, set()).update(devices)
        for device in devices:
            self._jobs.setdefault(device, []).append(job_id)

    def leave(self, job_id: str, devices: Iterable[int]) -> None:
        """Remove a job from devices; those without another job are idle."""
        removed = sorted(devices)
        self._devices[job_id].difference_update(removed)
        for device in removed:
            self._jobs[device].remove(job_id)
        self.idle.give([device for device in removed if not self._jobs[device]])

    def idle_without(self, job_ids: set[str], devices: Iterable[int]) -> list[int]:
        """Return which of some devices would be idle without some jobs."""
        return [device for device in devices if job_ids.issuperset(self.on(device))]
