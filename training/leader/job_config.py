"""Configuration of an elastic job: number of workers and time limits, read by its leader."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from presage.errors import ElasticError
from presage.system.files.atomic_file import replace_text
from presage.system.files.user_file import read_regular

_MAX_BYTES = 1 << 16
MAX_WORKERS = 64  # workers have one bit each in the headers of a ring


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Configuration of an elastic job.

    Attributes
    ----------
    workers : int
        Number of workers to start with.
    min_workers, max_workers : int
        Bounds of the number of workers. Below ``min_workers`` the job waits.
    host : str
        Address on which the leader listens.
    silence_s : float
        Time without a heartbeat after which a worker is removed.
    start_timeout_s : float
        Time after which a job starts with ``min_workers`` if not all ``workers`` are ready.
    memory_bytes : int
        Memory of each worker on its GPU; 0 for no limit.
    idle_exit_s : float
        Time without a worker after which the leader ends; started again, it continues. 0: never.
    is_successor : bool
        Whether the job may have workers of an earlier leader, whose journal this one lacks. Without
        a journal it then waits ``start_timeout_s`` for them before it starts a first generation.
    """

    workers: int = 1
    min_workers: int = 1
    max_workers: int = MAX_WORKERS
    host: str = "127.0.0.1"
    silence_s: float = 10.0
    start_timeout_s: float = 60.0
    memory_bytes: int = 0
    idle_exit_s: float = 0.0
    is_successor: bool = False

    def __post_init__(self) -> None:
        low, high = self.min_workers, self.max_workers
        if low < 1:
            raise ElasticError(f"min_workers={low}: a job needs at least 1 worker")
        if low > high:
            raise ElasticError(f"min_workers={low} is more than max_workers={high}")
        if high > MAX_WORKERS:
            raise ElasticError(f"max_workers={high}: at most {MAX_WORKERS} are supported")
        self.check_size(self.workers)
        if not (self.silence_s > 0 and self.start_timeout_s > 0):
            raise ElasticError("silence_s and start_timeout_s must be more than 0")

    def check_size(self, workers: int) -> None:
        """Raise ElasticError unless a number of workers is within the bounds."""
        if not self.min_workers <= workers <= self.max_workers:
            raise ElasticError(
                f"{workers} workers is outside the job's bounds, {self.min_workers} to "
                f"{self.max_workers}"
            )


def write_config(path: Path, config: JobConfig) -> None:
    """Write a configuration file."""
    replace_text(path, json.dumps(asdict(config), indent=2) + "\n", durable=True)


def read_config(path: Path) -> JobConfig:
    """Read a configuration file.

    Raises
    ------
    ElasticError
        The file is missing, is not JSON, or has an unknown key or an invalid value.
    """
    try:
        row = json.loads(read_regular(path, _MAX_BYTES))
    except (OSError, ValueError) as error:
        raise ElasticError(f"{path}: cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise ElasticError(f"{path}: not a JSON object")
    return _config_of(row, path)


def _config_of(row: dict[str, Any], path: Path) -> JobConfig:
    types = {one.name: type(one.default) for one in fields(JobConfig)}
    for name, value in row.items():
        if name not in types:
            raise ElasticError(f"{path}: unknown key {name!r}; known are {', '.join(types)}")
        if type(value) is not types[name] and not (types[name] is float and type(value) is int):
            raise ElasticError(f"{path}: {name} must be of type {types[name].__name__}")
    return JobConfig(**row)
