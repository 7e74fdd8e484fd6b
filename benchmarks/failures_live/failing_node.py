"""Node of a local cluster that fails as if its power did, and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from benchmarks.elastic_live.live import start_agent
from presage.schedulers.live.agent.isolation.job_environment import STATE
from presage.schedulers.live.agent.tasks.processes import environment, pids, stat


class FailingNode:
    """Agent with its shims and jobs; its folder of state outlasts a failure.

    Attributes
    ----------
    failed_unix_s, started_unix_s : list of float
        When its processes were killed, and when its agent was started.
    """

    def __init__(self, folder: Path, name: str, address: str, device: str) -> None:
        self.name = name
        self.failed_unix_s: list[float] = []
        self.started_unix_s: list[float] = []
        self._folder, self._address, self._device = folder, address, device
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the agent."""
        self.started_unix_s.append(time.time())
        self._agent = start_agent(self._folder, self.name, self._address, [self._device])

    def fail(self) -> None:
        """Kill the agent, then all processes that it started."""
        self.failed_unix_s.append(time.time())
        self._end(signal.SIGKILL)
        self.kill_jobs()

    def stop(self) -> None:
        """End the agent; its jobs continue."""
        self._end(signal.SIGTERM)

    def kill_jobs(self) -> None:
        """Kill shims and jobs until none is left: a shim must not record how its job ended."""
        while found := [*self._shims(), *self._jobs()]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _end(self, number: signal.Signals) -> None:
        if self._agent is not None:
            self._agent.send_signal(number)
            self._agent.wait(60)
            self._agent = None

    def _shims(self) -> Iterator[int]:
        inside = os.fsencode(self._folder / self.name) + b"/"
        for pid in _running():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"tasks.shim import" in words and inside in words:
                    yield pid

    def _jobs(self) -> Iterator[int]:
        state = os.fsencode(self._folder / self.name)
        return (pid for pid in _running() if environment(pid).get(STATE.encode()) == state)


def _running() -> Iterator[int]:
    return (pid for pid in pids() if (found := stat(pid)) and found.state not in "ZX")
