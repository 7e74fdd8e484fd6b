"""Outcome of a job as its scheduler reports it, and the result of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from presage.errors import PresageError
from presage.features.device.device import Device, Share
from presage.features.job.job_description import JobFeatures


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measured outcome of a job; a quantity that was not measured is None.

    Attributes
    ----------
    idempotency_key : str
        Unique key of the caller for this report; reports with the same key count once.
    release_id : str
        Release that predicted the job; "" for none.
    failure : str
        "" if the job completed, else "out-of-memory", "crash" or "timeout".
    colocated_jobs : tuple of (JobFeatures, Share)
        Jobs that were co-located for most of the measured time.
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
    colocated_jobs: tuple[tuple[JobFeatures, Share], ...] = ()
    additional: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Reported:
    """Result of a report: numbers of new and known outcomes, and the errors of rejected ones."""

    accepted: int
    duplicates: int
    refused: Mapping[int, PresageError]
