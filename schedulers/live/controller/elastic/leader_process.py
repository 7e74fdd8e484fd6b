"""Leader process of one attempt of an elastic job: started, informed and ended as required."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.errors import ElasticError
from presage.schedulers.live.controller.elastic.attempts import Attempt
from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.files.atomic_file import replace_text
from presage.training.job_folder import FAILED, SUSPENDED, JobFolder
from presage.training.leader.job_config import JobConfig, write_config
from presage.training.local_job import request, start_leader

IDLE_EXIT_S = 120.0  # a leader ends after so long without a worker; it can be started again
_RETRY_S = 2.0  # between attempts to start a leader
_OVER = frozenset({"done", "failed", "suspended"})
_OVER_STATUSES = frozenset({0, FAILED, SUSPENDED})  # exit statuses of leaders of such jobs


class LeaderProcess:
    """Leader process of one attempt, which may have been started by an earlier controller.

    Parameters
    ----------
    token : str
        Token of the attempt. It does not change if the controller moves to another machine, so that
        workers can connect again.

    Attributes
    ----------
    address : ElasticWorker or None
        Where it was last seen.
    problem : str
        Why it does not run; "" if it does.
    rejection : str
        Why it rejected the last resize; "" if it did not.
    """

    def __init__(self, state: Path, attempt: Attempt, host: str, token: str) -> None:
        self._state, self._host, self._token = state, host, token
        self._folder = JobFolder(state, attempt.leader_job)
        self._names: tuple[str, ...] = ()  # of its last resize
        self._next_start_s = 0.0
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self.address: pb.ElasticWorker | None = None
        self.problem = self.rejection = ""

    def follow(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return the status of the leader, after it was started or informed if it has to be.

        None stands for a leader that does not respond or has ended.

        Raises
        ------
        ElasticError, OSError
            It cannot be started.
        """
        if self._is_over:
            return None
        status = self._status()
        if status is None:
            self._start(attempt)
            return None
        self._is_over = status["state"] in _OVER
        found = self._folder.leader()
        self.address = pb.ElasticWorker(
            leader_job=self._folder.job, port=found.port, token=found.token
        )
        if attempt.names != self._names and not attempt.is_ending and not self._is_over:
            self._resize(attempt, status["capacity"])
        return status

    def end(self) -> None:
        """End the leader and remove its files."""
        stop_leader(self._folder)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._state, ignore_errors=True)

    def _status(self) -> dict[str, Any] | None:
        if self._process is not None and self._process.poll() is not None:
            self._is_over = self._process.returncode in _OVER_STATUSES
            self._process = None
        try:
            return request(self._folder, {"op": "status"})
        except ElasticError:
            return None

    def _start(self, attempt: Attempt) -> None:
        now_s = time.monotonic()
        if self._is_over or now_s < self._next_start_s:
            return
        self._next_start_s = now_s + _RETRY_S
        self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(self._folder.path / "token", self._token, durable=True)
        if not self._folder.config.exists():
            config = JobConfig(
                workers=min(max(len(attempt.names), attempt.least), attempt.most),
                min_workers=attempt.least,
                max_workers=attempt.most,
                host=self._host,
                idle_exit_s=IDLE_EXIT_S,
                is_successor=attempt.has_run,
            )
            write_config(self._folder.config, config)
        self._process = start_leader(self._folder, self._state)
        self._names = ()  # it may not know the last ones

    def _resize(self, attempt: Attempt, capacity: int) -> None:
        if not attempt.least <= len(attempt.names) <= attempt.most:
            return
        workers = min(len(attempt.names), capacity)
        message = {"op": "resize", "workers": workers, "names": list(attempt.names)}
        try:
            request(self._folder, message)
        except ElasticError as error:  # tried again
            self.rejection = str(error)
        else:
            self._names, self.rejection = attempt.names, ""


def stop_leader(folder: JobFolder) -> None:
    """Request a leader to end, if it responds."""
    with suppress(ElasticError):
        request(folder, {"op": "stop"})


def leader_report(
    attempt: int, status: dict[str, Any], rejection: str, now_s: float
) -> LeaderReport:
    """Return the report in the status of a leader, and why it rejected the last resize."""
    pace = status["pace"] or {"per_s": 0.0, "seconds": 0.0}
    return LeaderReport(
        attempt,
        status["done"],
        status["saved"],
        status["size"],
        pace["per_s"],
        pace["seconds"],
        {worker["name"]: worker["state"] for worker in status["workers"]},
        now_s,
        status["reason"] or rejection,
        status["capacity"],
    )
