"""Supervision of child processes: restarts with exponential back-off, bounded logs, clean ends."""

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
from presage.schedulers.live.agent.tasks.log_file import first_of, keep_small, read_log

POLL_S = 0.1
STOP_S = 15.0  # from SIGTERM to SIGKILL
MOST_LOG_BYTES = 16 * 1024 * 1024  # and as much again of the log before it
TAIL_BYTES = 64 * 1024  # of a log, in which the error of a process is looked for
ERROR = "error: "  # how a line begins in which a command says why it failed


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to keep running.

    Attributes
    ----------
    log : Path
        File that its output is appended to.
    variables : mapping of str to str
        Environment variables in addition to those of this process.
    """

    name: str
    command: Sequence[str]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential back-off, in seconds: the delay doubles with each failure in a row.

    A process that ran for ``stable_s`` ends a row of failures.
    """

    first_delay_s: float = 1.0
    most_delay_s: float = 60.0
    stable_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """Return the delay before the next start, after so many failures in a row (from 1)."""
        doublings = min(failures - 1, 32)  # more would overflow
        return min(self.first_delay_s * 2.0**doublings, self.most_delay_s)


class Supervisor:
    """Processes that are started again whenever they end; made by :func:`supervising`.

    Parameters
    ----------
    say : callable
        Takes one line for each process that ended.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        policy: RestartPolicy = RestartPolicy(),
        most_log_bytes: int = MOST_LOG_BYTES,
    ) -> None:
        self._say, self._policy, self._most_log_bytes = say, policy, most_log_bytes
        self._children: list[_Child] = []
        self.stopping = False

    def start_until(self, spec: ProcessSpec, ready: str) -> bool:
        """Start a process and wait until its log contains a text; False if stopped before.

        Raises
        ------
        ServiceError
            It ended before that; the error contains its own error line.
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
        """Start a process; one that cannot be started is tried again, as one that ends."""
        self._add(spec)

    def run(self) -> None:
        """Restart processes as they end, until SIGINT or SIGTERM arrives."""
        while not self.stopping:
            for child in self._children:
                self._check(child)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End all processes: SIGTERM, then SIGKILL after ``STOP_S``."""
        running = [child.process for child in self._children if child.process is not None]
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
        self._children.append(child)
        child.start()
        return child

    def _check(self, child: _Child) -> None:
        keep_small(child.spec.log, self._most_log_bytes)
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
        times = f", {child.failures} times in a row" if child.failures > 1 else ""
        with suppress(OSError):  # its reader has ended
            self._say(f"{child.spec.name} {why}; it is started again in {delay_s:g} s{times}")


@contextmanager
def supervising(
    say: Callable[[str], object],
    policy: RestartPolicy = RestartPolicy(),
    most_log_bytes: int = MOST_LOG_BYTES,
) -> Iterator[Supervisor]:
    """Yield a supervisor that SIGINT and SIGTERM stop; at the end its processes are ended.

    The signal handlers only set a flag: an exception between starting a process and noting it
    would leave that process behind.
    """
    supervisor = Supervisor(say, policy, most_log_bytes)

    def stop(_number: int, _frame: FrameType | None) -> None:
        supervisor.stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield supervisor
    finally:
        supervisor.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Child:
    """A process as it was started last.

    Attributes
    ----------
    failures : int
        Ends in a row, without a stable run in between.
    due_s : float or None
        When to start it again, by the monotonic clock; None while it runs.
    """

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.failures = 0
        self.due_s: float | None = None
        self._log_begin = 0  # bytes of the log before this start
        self._unstarted = ""  # why it could not be started

    def start(self) -> None:
        """Start it; that it cannot be is what :meth:`ended` then says."""
        self.process, self.due_s, self._unstarted = None, None, ""
        self.started_s = time.monotonic()
        try:
            with open(self.spec.log, "ab", opener=_private) as output:
                self._log_begin = first_of(self.spec.log) + output.tell()
                self.process = subprocess.Popen(
                    self.spec.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True, env={**os.environ, **self.spec.variables},
                )  # fmt: skip
        except OSError as error:
            self._unstarted = one_line(f"could not be started: {error}")

    def ended(self) -> str | None:
        """Return how it ended, in words, with its own error line; None while it runs."""
        if self.process is None:
            return self._unstarted
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            return f"was ended by {_signal_name(-code)}"
        if code == 0:
            return "ended by itself"
        return f"ended with {code}: {_error_line(self.output())}"

    def output(self) -> bytes:
        """Return the last ``TAIL_BYTES`` of what it wrote since it was started."""
        try:
            part = read_log(self.spec.log, -TAIL_BYTES, TAIL_BYTES)
        except OSError:  # removed meanwhile
            return b""
        return part.content[max(0, self._log_begin - part.offset) :]


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, if it is created."""
    return os.open(path, flags, 0o600)


def _error_line(output: bytes) -> str:
    """Return the last line that begins with ``ERROR``, else the last one that is not empty."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(ERROR)]
    return one_line((errors or lines or ["it wrote nothing"])[-1])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
