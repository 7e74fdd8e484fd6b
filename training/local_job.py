"""Elastic job on this machine: starts its leader and workers, resizes it, and shows its status."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.errors import ElasticError
from presage.training.job_folder import (
    JOB_VARIABLE,
    LEFT,
    PROCESS_GROUP,
    STATE_VARIABLE,
    SUSPENDED,
    WORKER_VARIABLE,
    JobFolder,
)
from presage.training.leader.job_config import JobConfig, write_config
from presage.training.leader.journal import Journal
from presage.training.leader_restarts import LeaderRestarts
from presage.training.local_gpus import LocalGpus, visible_gpus
from presage.training.wire import Message, connect, receive, send

_POLL_S = 0.1
_START_S = 60.0
_STOP_S = 10.0  # from SIGTERM to SIGKILL
_END_S = 5.0  # for the leader to end after the last worker


def request(folder: JobFolder, message: Message) -> dict[str, Any]:
    """Send a request to the leader of a job and return its answer.

    Raises
    ------
    ElasticError
        There is no leader, or it rejects the request.
    """
    address = folder.leader()
    with connect(address.host, address.port) as connection:
        send(connection, {**message, "token": address.token})
        answer = receive(connection)
    if answer.get("op") == "error":
        raise ElasticError(str(answer.get("message")))
    return answer


def start_leader(folder: JobFolder, state: Path) -> subprocess.Popen[bytes]:
    """Start the leader of a configured job, and wait until it listens.

    Raises
    ------
    ElasticError
        It ended; the message is its error.
    """
    command = [
        sys.executable, "-m", "presage.training.leader", "--job", folder.job, "--state", str(state)
    ]  # fmt: skip
    log = folder.path / "leader.log"
    with log.open("ab") as output:
        start = output.tell()
        leader = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        if leader.poll() is not None:
            lines = log.read_bytes()[start:].decode(errors="replace").strip().splitlines()
            raise ElasticError(lines[-1].removeprefix("error: ") if lines else "the leader ended")
        if _pid_of_leader(folder) == leader.pid:
            return leader
        time.sleep(_POLL_S / 5)
    leader.kill()
    raise ElasticError(f"the leader did not listen within {_START_S:g} s; see {log}")


def prepare(folder: JobFolder, config: JobConfig) -> None:
    """Create the folder of a job and write its configuration; remove what an ended job left.

    Raises
    ------
    ElasticError
        The job runs, or it was interrupted.
    """
    folder.create()
    if folder.journal.exists():
        journal = Journal(folder.journal)
        last = journal.records[-1]["type"] if journal.records else "done"
        journal.close()
        if last not in ("done", "failed", "suspended") and _is_running(folder):
            raise ElasticError(
                f"job {folder.job!r} runs already; resize it, or choose another name"
            )
        folder.journal.unlink()
        (folder.path / "leader.log").unlink(missing_ok=True)
    write_config(folder.config, config)


class LocalJob:
    """Leader and workers of a job as child processes.

    Parameters
    ----------
    command : sequence of str
        Command of a worker.
    say : callable
        Receives a line for each event.
    """

    def __init__(
        self, state: Path, job: str, config: JobConfig, command: Sequence[str],
        say: Callable[[str], object],
    ) -> None:  # fmt: skip
        self.folder, self._state = JobFolder(state, job), state
        self._config, self._command, self._say = config, list(command), say
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._gpus = LocalGpus(visible_gpus())
        self._started = 0
        self._log_bytes = 0
        self._resize_requests = 0
        self._restarts = LeaderRestarts()
        self._leader: subprocess.Popen[bytes]
        self._leader_start_s = 0.0

    def run(self) -> int:
        """Run the job until it ends; return 0 if it is done, 1 if it failed, 75 if suspended.

        A leader that is killed is started again, and one that crashes at most 3 times in a row; a
        worker is not. SIGTERM lets all workers leave, so that a job with a checkpoint can be
        continued.

        Raises
        ------
        ElasticError
            The leader cannot be started.
        """
        prepare(self.folder, self._config)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self._start_leader()
        try:
            self._start_workers(self._config.workers)
            end_s = math.inf
            while time.monotonic() < end_s and (self._leader.poll() is None or self._restart()):
                time.sleep(_POLL_S)
                self._follow()
                if not self._workers and end_s == math.inf:
                    end_s = time.monotonic() + _END_S
        finally:
            self._stop(self._leader)
        return self._leader.returncode if self._leader.returncode in (0, SUSPENDED) else 1

    def _start_leader(self) -> None:
        self._leader = start_leader(self.folder, self._state)
        self._leader_start_s = time.monotonic()
        self._resize_requests = 0  # a leader counts those since its start

    def _restart(self) -> bool:
        """Start the leader again if it was killed or crashed; return whether it runs.

        Its journal has all that it knew.
        """
        status = self._leader.returncode
        while why := self._restarts.reason(status, time.monotonic() - self._leader_start_s):
            self._follow_log()
            self._say(f"the leader {why}; starting it again")
            try:
                self._start_leader()
            except ElasticError:  # its log says why
                status = 1
            else:
                return True
        return False

    def _follow(self) -> None:
        """Say what happened, and start workers for a resize request."""
        for name, process in list(self._workers.items()):
            if (status := process.poll()) is not None:
                del self._workers[name]
                self._gpus.release(name)
                if status not in (0, LEFT):
                    self._say(f"worker {name} ended with status {status}")
        self._follow_log()
        try:
            status_row = request(self.folder, {"op": "status"})
        except ElasticError:
            return  # it ends or restarts
        if status_row["resize_requests"] > self._resize_requests:
            self._resize_requests = status_row["resize_requests"]
            self._start_workers(status_row["desired"] - len(self._workers))

    def _follow_log(self) -> None:
        """Say the new lines of the leader's log."""
        content = (self.folder.path / "leader.log").read_bytes()
        end = content.rfind(b"\n") + 1
        for line in content[self._log_bytes : end].decode(errors="replace").splitlines():
            self._say(line)
        self._log_bytes = end

    def _start_workers(self, count: int) -> None:
        for _ in range(max(0, count)):
            self._started += 1
            name = f"w{self._started}"
            variables = {
                **PROCESS_GROUP,
                **self._gpus.allocate(name),
                JOB_VARIABLE: self.folder.job,
                STATE_VARIABLE: str(self._state.resolve()),
                WORKER_VARIABLE: name,
            }
            self._workers[name] = subprocess.Popen(self._command, env={**os.environ, **variables})

    def _stop(self, leader: subprocess.Popen[bytes]) -> None:
        """Let the workers leave, then end what is left."""
        for process in self._workers.values():
            process.terminate()
        end_s = time.monotonic() + _STOP_S
        for process in self._workers.values():
            _end(process, end_s)
        if leader.poll() is None and self._workers:  # it notices that they left
            with suppress(subprocess.TimeoutExpired):
                leader.wait(_END_S)
        leader.terminate()
        _end(leader, time.monotonic() + _STOP_S)
        self._follow_log()


def _end(process: subprocess.Popen[bytes], end_s: float) -> None:
    """Wait for a process until a time, then kill it."""
    try:
        process.wait(max(0.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _pid_of_leader(folder: JobFolder) -> int:
    try:
        return folder.leader().pid
    except ElasticError:
        return 0


def _is_running(folder: JobFolder) -> bool:
    try:
        request(folder, {"op": "status"})
    except ElasticError:
        return False
    return True
