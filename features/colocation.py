"""Jobs that share a device at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from presage.errors import InvalidJobError
from presage.features.device.device import Device, Share
from presage.features.job.job_description import JobFeatures


@dataclass(frozen=True, slots=True)
class Colocation:
    """A device and the jobs on it, each with its share; the order has no meaning."""

    device: Device
    members: tuple[JobFeatures, ...]
    shares: tuple[Share, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidJobError(
                f"co-location on {self.device.kind!r} has no job; give at least one member"
            )
        if len(self.shares) != len(self.members):
            raise InvalidJobError(
                f"co-location on {self.device.kind!r}: {len(self.members)} jobs but "
                f"{len(self.shares)} shares; give one share per job"
            )
