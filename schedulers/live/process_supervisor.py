"""Supervision of child processes: restarts with exponential backoff, bounded logs, shutdown."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from presage.errors import ServiceError, one_line
from presage.schedulers.live.agent.tasks.log_file import limit_log_size, read_log, start_offset

POLL_S = 0.1
STOP_S = 15.0  # from SIGTERM to SIGKILL
MAX_LOG_BYTES = 16 * 1024 * 1024  # and as much again in the previous log
TAIL_BYTES = 64 * 1024  # of a log, in which the error of a process is searched
ERROR = "error: "  # prefix of the line in which a command reports its failure


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Process to keep running.

    Attributes
    ----------
    log : Path
        File to append its output to.
    variables : mapping of str to str
        Environment variables in addition to those of this process.
    """

    name: str
    command: Sequence[str]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential backoff, in seconds: the delay doubles with each consecutive failure.

    A run of ``stable_s`` resets the count of failures.
    """

    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    stable_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """Return the delay before the next start, after a number of consecutive failures (>= 1)."""
        doublings = min(failures - 1, 32)  # more would overflow
        return min(self.first_delay_s * 2.0**doublings, self.max_delay_s)


class Supervisor:
    """Supervisor that restarts its processes when they end; created by :func:`supervising`.

    Parameters
    ----------
    report : callable
        Receives one line for each process that ended.
    """

    def __init__(
        self,
        report: Callable[[str], object],
        policy: RestartPolicy = RestartPolicy(),
        max_log_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        self._report, self._policy, self._most_log_bytes = report, policy, max_log_bytes
        self.children: list[_Child] = []
        self.stopping = False

    def start_until(self, spec: ProcessSpec, ready: str) -> bool:
        """Start a process and wait until its log contains a text; return False if stopped before.

        Raises
        ------
        ServiceError
            It ended before that; the message contains its error line.
        """
        child = self._add(spec)
        while not self.stopping:
            if ready.encode() in child.output():
                return True
            if (why := child.ended()) is not None:
                raise ServiceError(f"{spec.name} {why}")
            time.sleep(POLL_S)
        return False

    def start(self, spec: ProcessSpec) -> None:
        """Start a process; a failed start is retried like an end."""
        self._add(spec)

    def run(self) -> None:
        """Restart processes as they end, until SIGINT or SIGTERM arrives."""
        while not self.stopping:
            for child in self.children:
                self._check(child)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End all processes: SIGTERM, then SIGKILL after ``STOP_S``."""
        running = [child.process for child in self.children if child.process is not None]
        for process in running:
            process.terminate()
        end_s = time.monotonic() + STOP_S
        for process in running:
            try:
                process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _add(self, spec: ProcessSpec) -> _Child:
        child = _Child(spec)
        self.children.append(child)
        child.start()
        return child

    def _check(self, child: _Child) -> None:
        limit_log_size(child.spec.log, self._most_log_bytes)
        now_s = time.monotonic()
        if child.due_s is not None:
            if now_s >= child.due_s:
                child.start()
            return
        if (why := child.ended()) is None:
            return
        if now_s - child.started_s >= self._policy.stable_s:
            child.failures = 0
        child.failures += 1
        delay_s = self._policy.delay_s(child.failures)
        child.due_s = now_s + delay_s
        times = f", {child.failures} failures in a row" if child.failures > 1 else ""
        with suppress(OSError):  # the reader of the output has ended
            self._report(f"{child.spec.name} {why}; restarting in {delay_s:g} s{times}")


@contextmanager
def supervising(
    report: Callable[[str], object],
    policy: RestartPolicy = RestartPolicy(),
    max_log_bytes: int = MAX_LOG_BYTES,
) -> Iterator[Supervisor]:
    """Yield a supervisor that SIGINT and SIGTERM stop; end its processes on exit.

    The signal handlers only set a flag: an exception between the start of a process and its
    registration would leave the process behind.
    """
    supervisor = Supervisor(report, policy, max_log_bytes)

    def stop(_number: int, _frame: FrameType | None) -> None:
        supervisor.stopping = True

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield supervisor
    finally:
        supervisor.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Child:
    """Supervised process, from its last start.

    Attributes
    ----------
    failures : int
        Consecutive ends without a stable run in between.
    due_s : float or None
        When to restart it, by the monotonic clock; None while it runs.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.failures = 0
        self.due_s: float | None = None
        self._log_start = 0  # offset in the log of this start
        self._start_error = ""

    def start(self) -> None:
        """Start it; :meth:`ended` reports an error of the start."""
        self.process, self.due_s, self._start_error = None, None, ""
        self.started_s = time.monotonic()
        try:
            with open(self.spec.log, "ab", opener=_private) as output:
                self._log_start = start_offset(self.spec.log) + output.tell()
                self.process = subprocess.Popen(
                    self.spec.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True, env={**os.environ, **self.spec.variables},
                )  # fmt: skip
        except OSError as error:
            self._start_error = one_line(f"could not be started: {error}")

    def ended(self) -> str | None:
        """Return how it ended, with its error line; None while it runs."""
        if self.process is None:
            return self._start_error
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            return f"was ended by {_signal_name(-code)}"
        if code == 0:
            return "ended by itself"
        return f"ended with {code}: {_error_line(self.output())}"

    def output(self) -> bytes:
        """Return the last ``TAIL_BYTES`` of its output since it was started."""
        try:
            part = read_log(self.spec.log, -TAIL_BYTES, TAIL_BYTES)
        except OSError:  # removed meanwhile
            return b""
        return part.content[max(0, self._log_start - part.offset) :]


def _private(path: str, flags: int) -> int:
    """Open a file; if it is created, only its owner can read it."""
    return os.open(path, flags, 0o600)


def _error_line(output: bytes) -> str:
    """Return the last line that begins with ``ERROR``, else the last line that is not empty."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(ERROR)]
    return one_line((errors or lines or ["it wrote nothing"])[-1])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
