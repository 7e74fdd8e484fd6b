"""One row to predict: a job on a share of a device."""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.device.device import Device, Share
from presage.features.job.job import JobFeatures


@dataclass(frozen=True, slots=True)
class Placement:
    """A job, the device that it runs on, and how much of it."""

    job: JobFeatures
    device: Device
    share: Share = Share()
