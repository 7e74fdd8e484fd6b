"""Folder of an elastic job, in which its leader is found by the job's name.

It contains the job's configuration, token and journal, and the address of its leader::

    STATE/NAME/job.json  token  leader.json  journal.jsonl  leader.log

On a cluster each worker has a folder of its own, with the address and its memory share::

    STATE/NAME/token  leader.json  memory_bytes
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from presage.errors import ElasticError
from presage.system.files.atomic_file import replace_text
from presage.system.files.user_file import read_regular

JOB_VARIABLE, STATE_VARIABLE = "PRESAGE_ELASTIC_JOB", "PRESAGE_ELASTIC_STATE"
WORKER_VARIABLE = "PRESAGE_ELASTIC_WORKER"
# Each worker is a process group of its own for torch.distributed, so that a script can wrap its
# model in DistributedDataParallel as under torchrun; port 0 takes a free one.
PROCESS_GROUP = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
}
MEMORY_SHARE = "memory_bytes"  # file with a worker's share
# Exit statuses of a leader; 0 if its job is done, 1 if the leader itself failed.
UNFINISHED = 3  # it ended before its job did
FAILED = 4  # its job failed
SUSPENDED = os.EX_TEMPFAIL  # 75: all workers have left its job
LEFT = os.EX_TEMPFAIL  # exit status, 75, of a worker that left before the end of its job
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MAX_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Address of a leader, with the token of its job."""

    host: str
    port: int
    token: str
    pid: int


class JobFolder:
    """Folder of one job.

    Raises
    ------
    ElasticError
        The name has other characters than letters, digits, ``.``, ``_`` and ``-``.
    """

    def __init__(self, state: Path, job: str) -> None:
        if not _NAME.fullmatch(job):
            raise ElasticError(
                f"job name {job!r}: use at most 63 letters, digits, '.', '_' and '-', beginning "
                "with a letter or digit"
            )
        self.job, self.path = job, state / job

    @property
    def config(self) -> Path:
        """Configuration file."""
        return self.path / "job.json"

    @property
    def journal(self) -> Path:
        """Journal of the leader."""
        return self.path / "journal.jsonl"

    def create(self) -> None:
        """Create the folder and the token, unless they exist."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.path / "token").exists():
            replace_text(self.path / "token", secrets.token_urlsafe(32), durable=True)

    def token(self) -> str:
        """Return the job's token; raises ElasticError if there is none."""
        try:
            return read_regular(self.path / "token", _MAX_BYTES).decode().strip()
        except (OSError, ValueError):
            raise ElasticError(f"{self._missing}: {self.path} has no token") from None

    def publish(self, host: str, port: int) -> None:
        """Write the address of this process, which is the leader."""
        row = {"host": host, "port": port, "pid": os.getpid()}
        replace_text(self.path / "leader.json", json.dumps(row), durable=True)

    def withdraw(self) -> None:
        """Remove the leader's address."""
        (self.path / "leader.json").unlink(missing_ok=True)

    def leader(self) -> LeaderAddress:
        """Return the address of the leader; raises ElasticError if there is none."""
        try:
            row = json.loads(read_regular(self.path / "leader.json", _MAX_BYTES))
            return LeaderAddress(str(row["host"]), int(row["port"]), self.token(), int(row["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            raise ElasticError(f"{self._missing} in {self.path.parent}") from None

    def memory_bytes(self) -> int | None:
        """Return the worker's share of memory in bytes, 0 for no limit; None if there is none."""
        try:
            return int(read_regular(self.path / MEMORY_SHARE, _MAX_BYTES))
        except (OSError, ValueError):
            return None

    @property
    def _missing(self) -> str:
        return f"no leader of job {self.job!r}"
