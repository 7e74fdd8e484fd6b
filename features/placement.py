"""Placement: one row to predict, a job on a share of a device."""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.device.device import Device, Share
from presage.features.job.job_description import JobFeatures


@dataclass(frozen=True, slots=True)
class Placement:
    """A job, the device that it runs on, and its share of the device."""

    job: JobFeatures
    device: Device
    share: Share = Share()
