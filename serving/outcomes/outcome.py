"""What is reported of a job that ran, and what became of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.errors import PresageError
from presage.features.device.device import Device, Share
from presage.features.job.job import JobFeatures


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job really did; a quantity that was not measured is None.

    Attributes
    ----------
    idempotency_key : str
        The caller's own name for this report: sent again with the same one, it counts once.
    release_id : str
        The release that had foretold it, "" if none had.
    failure : str
        "" when it ran to its end, else "out-of-memory", "crash" or "timeout".
    neighbours : tuple of (JobFeatures, Share)
        Jobs on the device for most of the time that was measured.
    additional : mapping of str to float
        Measured values of quantities without an attribute here, by forecast field.
    """

    idempotency_key: str
    job: JobFeatures
    device: Device
    share: Share = Share()
    release_id: str = ""
    finished_at_unix_s: float = 0.0
    compute_utilization: float | None = None
    memory_peak_bytes: int | None = None
    step_time_median_s: float | None = None
    runtime_s: float | None = None
    failure: str = ""
    neighbours: tuple[tuple[JobFeatures, Share], ...] = ()
    additional: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Reported:
    """How many outcomes are on disk by this report and were before; why others are not."""

    accepted: int
    duplicates: int
    refused: Mapping[int, PresageError]
