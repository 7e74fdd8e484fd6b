"""Job that a user submits to a live cluster: its features and its command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from presage.errors import InvalidJobError
from presage.schedulers.core.job import Job

GRACE_S = 30.0  # default time to save a checkpoint before the end
MAX_GRACE_S = 3600.0
MAX_RETRIES = 1000
MAX_NAME_LENGTH = 128
MAX_DEPENDENCIES = 1_000  # names; that of an array counts once


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """Job and its command.

    Attributes
    ----------
    command : tuple of str
        Program and arguments, run without a shell.
    folder : str
        Working directory on every node; "" for the agent's default.
    environment : mapping of str to str
        Added to the variables that the agent passes on.
    grace_s : float
        Time to save a checkpoint before it is ended.
    retries : int
        Number of restarts after failures of the job itself.
    features_id : str
        The user's name for its features; their digest identifies them.
    time_limit_s : float
        Longest time of each run from its start; 0 for no limit.
    after, after_any : tuple of str
        Jobs that have to finish, or to end in whatever way, before it starts.
    array : str
        Array that it belongs to; "" for none.
    array_limit : int
        Number of jobs of the array that may run at once; 0 for no limit.
    hold : bool
        Whether it does not start until it is released.
    """

    job: Job
    command: tuple[str, ...]
    folder: str = ""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    grace_s: float = GRACE_S
    retries: int = 0
    features_id: str = ""
    time_limit_s: float = 0.0
    after: tuple[str, ...] = ()
    after_any: tuple[str, ...] = ()
    array: str = ""
    array_limit: int = 0
    hold: bool = False

    def __post_init__(self) -> None:
        job_id = self.job.job_id
        if not job_id or len(job_id) > MAX_NAME_LENGTH or not job_id.isprintable():
            raise InvalidJobError(
                f"job {job_id!r}: the name must be 1 to {MAX_NAME_LENGTH} printable characters"
            )
        if not self.command or not self.command[0]:
            raise InvalidJobError(f"job {job_id!r}: no command; give a program to run")
        texts = (*self.command, self.folder, *self.environment, *self.environment.values())
        if any("\0" in text for text in texts):
            raise InvalidJobError(
                f"job {job_id!r}: its command, folder and environment must not contain a null "
                "character"
            )
        for name in self.environment:
            if not name or "=" in name:
                raise InvalidJobError(
                    f"job {job_id!r}: {name!r} is not a valid name of an environment variable"
                )
        if not (math.isfinite(self.grace_s) and 0 <= self.grace_s <= MAX_GRACE_S):
            raise InvalidJobError(
                f"job {job_id!r}: grace_s={self.grace_s}, must be between 0 and {MAX_GRACE_S:g}"
            )
        if not (math.isfinite(self.time_limit_s) and self.time_limit_s >= 0):
            raise InvalidJobError(
                f"job {job_id!r}: time_limit_s={self.time_limit_s}, must be a finite number >= 0; "
                "0 for no limit"
            )
        is_name = len(self.array) <= MAX_NAME_LENGTH and self.array.isprintable()
        if not is_name or self.array_limit < 0:
            raise InvalidJobError(
                f"job {job_id!r}: array={self.array[:16]!r}, array_limit={self.array_limit}: the "
                f"name has at most {MAX_NAME_LENGTH} printable characters, and the limit is >= 0"
            )
        if len(self.after) + len(self.after_any) > MAX_DEPENDENCIES:
            raise InvalidJobError(
                f"job {job_id!r}: runs after more than {MAX_DEPENDENCIES:,} jobs; submit them as "
                "an array, and name the array"
            )
        if not 0 <= self.retries <= MAX_RETRIES:
            raise InvalidJobError(
                f"job {job_id!r}: retries={self.retries}, must be between 0 and {MAX_RETRIES}"
            )
