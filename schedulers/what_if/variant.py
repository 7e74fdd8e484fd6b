"""Variants of a question: another number of devices, other kinds, another share or policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from presage.errors import InvalidJobError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job


@dataclass(frozen=True, slots=True)
class Variant:
    """Changes of the request of a job that has not started; None for no change.

    Attributes
    ----------
    gpus : int or None
        Number of devices; the job is not elastic then.
    kinds : tuple of str or None
        Accepted kinds of devices.
    share : float or None
        Share of each device, within (0, 1]; only some policies allocate it.
    policy : str or None
        Policy in place of the cluster's.
    """

    gpus: int | None = None
    kinds: tuple[str, ...] | None = None
    share: float | None = None
    policy: str | None = None

    @property
    def changes_job(self) -> bool:
        """Whether it changes the request of the job, and not only the policy."""
        return not (self.gpus is None and self.kinds is None and self.share is None)

    @property
    def label(self) -> str:
        """Text that names the changes; "as requested" without any."""
        parts = [
            f"{self.gpus} GPUs" if self.gpus is not None and self.gpus != 1 else "",
            "1 GPU" if self.gpus == 1 else "",
            f"kind {' or '.join(self.kinds)}" if self.kinds else "",
            f"share {self.share:g}" if self.share is not None else "",
            f"policy {self.policy}" if self.policy is not None else "",
        ]
        return ", ".join(part for part in parts if part) or "as requested"

    def apply(self, job: Job) -> Job:
        """Return the job with the changed request.

        Raises
        ------
        InvalidJobError
            A value is not valid.
        """
        if self.gpus is not None:
            job = replace(
                job,
                gpus=self.gpus,
                min_gpus=0,
                max_gpus=0,
                gpus_per_task=1 if self.gpus % job.gpus_per_task else job.gpus_per_task,
            )
        if self.kinds is not None:
            job = replace(job, kinds=self.kinds)
        if self.share is not None:
            if not 0 < self.share <= 1:
                raise InvalidJobError(f"share={self.share}, must be above 0 and at most 1")
            job = replace(job, compute_milli=max(1, round(FULL_DEVICE_MILLI * self.share)))
        return job


AS_REQUESTED = Variant()
