"""A job that a user submits to a live cluster: what it is, and how it is run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from presage.errors import InvalidJobError
from presage.schedulers.core.job import Job

GRACE_S = 30.0  # that a job may take to save its state
MOST_GRACE_S = 3600.0
MOST_RETRIES = 1000
MOST_NAME = 128


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job and its command.

    Attributes
    ----------
    command : tuple of str
        Run without a shell.
    folder : str
        That it runs in, on every node; "" for the agent's own.
    environment : mapping of str to str
        Added to the agent's.
    grace_s : float
        That it may take to save its state when it is asked to.
    retries : int
        How often it is run again after it failed by itself.
    features_id : str
        What its user calls its features; theirs is what tells them from others.
    """

    job: Job
    command: tuple[str, ...]
    folder: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    grace_s: float = GRACE_S
    retries: int = 0
    features_id: str = ""

    def __post_init__(self) -> None:
        job_id = self.job.job_id
        if not job_id or len(job_id) > MOST_NAME or not job_id.isprintable():
            raise InvalidJobError(
                f"job {job_id!r}: the name must be 1 to {MOST_NAME} printable characters"
            )
        if not self.command or not self.command[0]:
            raise InvalidJobError(f"job {job_id!r}: no command; name a program to run")
        texts = (*self.command, self.folder, *self.environment, *self.environment.values())
        if any("\0" in text for text in texts):
            raise InvalidJobError(
                f"job {job_id!r}: a null character in its command, folder or environment"
            )
        for name in self.environment:
            if not name or "=" in name:
                raise InvalidJobError(
                    f"job {job_id!r}: {name!r} is no name of an environment variable"
                )
        if not (math.isfinite(self.grace_s) and 0 <= self.grace_s <= MOST_GRACE_S):
            raise InvalidJobError(
                f"job {job_id!r}: grace_s={self.grace_s}, must be within 0 and {MOST_GRACE_S:g}"
            )
        if not 0 <= self.retries <= MOST_RETRIES:
            raise InvalidJobError(
                f"job {job_id!r}: retries={self.retries}, must be within 0 and {MOST_RETRIES}"
            )
