"""Child process that responds in JSON lines and ends with its parent."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Self, TextIO

PR_SET_PDEATHSIG = 1


class ChildFailure(Exception):  # noqa: N818 - a result to record, not an error to fix
    """Missing response: ``failure`` is "out-of-memory", "crash" or "timeout"."""

    def __init__(self, failure: str, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Child:
    """``python -m module SPEC`` in a session of its own, so that all its processes can be killed.

    The spec travels on the command line, requests as lines on stdin, responses as JSON lines
    on stdout. ``spawned_s`` (monotonic) and ``parent_pid`` are added to the spec. ``environment``
    is added to that of this process: variables that limit a job's share of a GPU are read when
    CUDA starts.
    """

    def __init__(
        self,
        module: str,
        spec: Mapping[str, Any],
        *,
        threads: int,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._unread = b""
        full = {**spec, "spawned_s": time.monotonic(), "parent_pid": os.getpid()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(full)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **child_environment(threads), **environment},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one line to its stdin; if it has ended, the next ``read`` raises."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def read(self, *, until_s: float) -> dict[str, Any]:
        """Return the next response, at the latest at ``until_s`` of the monotonic clock.

        Raises
        ------
        ChildFailure
            It reported a failure, ended, or did not respond in time.
        """
        while b"\n" not in self._unread:
            self._fill(until_s)
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if answer["event"] == "failed":
            raise ChildFailure(answer["failure"], answer["message"])
        return answer

    def _fill(self, until_s: float) -> None:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            raise ChildFailure("timeout", "no answer in time")
        got = os.read(pipe, 1 << 20)
        if not got:
            raise self._death()
        self._unread += got

    def _death(self) -> ChildFailure:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            # Only the kernel's out-of-memory killer kills a worker that this class did not kill.
            return ChildFailure("out-of-memory", "killed by SIGKILL")
        self._stderr.seek(0)
        tail = self._stderr.read().decode(errors="replace").strip()[-500:]
        return ChildFailure("crash", f"ended with status {code}: {tail}")

    def kill(self) -> None:
        """Kill the process and all processes that it started; do nothing if it has ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._stderr.close()


def child_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that must be set before torch is imported.

    An OpenMP thread that waits spins for some microseconds and then sleeps. Without spinning,
    waking a sleeping core dominates small operators, and a solo job is slower than one with a
    co-located job that keeps the cores awake. With libgomp's default of endless spinning,
    co-located jobs take whole time slices from each other. Measurements:
    docs/decisions/0003-let-openmp-threads-spin-briefly.md.

    CUDA numbers GPUs as NVML does, in the order of the PCI bus.
    """
    count = str(threads)
    return {
        "GOMP_SPINCOUNT": "1000",
        "KMP_BLOCKTIME": "0",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this child process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)


def claim_stdout() -> TextIO:
    """Return stdout for responses; redirect to stderr what libraries print."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers
