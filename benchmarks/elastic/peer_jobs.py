"""Jobs of torchrun and torchft, whose workers are started and killed one at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path

import psutil

from benchmarks.elastic.commits import Commit, last_commit, read_commits
from benchmarks.elastic.workers import free_ports

START_S = 90.0  # for the first workers to train
# What torchrun's rendezvous allows: less than 3 attempts count living agents as dead, because an
# agent sends only every second heartbeat.
RENDEZVOUS = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 3}
MONITOR_S = 0.1
# With a join_timeout_ms of 10, living replicas were left out of groups, for 4 to 12 s.
SHORT_MS = {"join_timeout_ms": 100, "quorum_tick_ms": 10, "heartbeat_timeout_ms": 1000}
README_MS = {"join_timeout_ms": 10_000, "quorum_tick_ms": 100}  # heartbeat_timeout_ms is 5000
_WORKER = "benchmarks.elastic.peer_workers"
_POLL_S = 0.02


class PeerJob(ABC):
    """Job whose workers commit steps to logs in a folder.

    Parameters
    ----------
    python : str
        Python of the environment that has the peer.
    """

    def __init__(self, python: str, workers: int) -> None:
        self.python, self.state = python, Path(tempfile.mkdtemp(prefix="peer-"))
        self.port = free_ports(1)[0]
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        try:
            self.before_workers()
            for _ in range(workers - self._count):
                self.start()
            self.generation = self.wait_for_size(workers, START_S)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def before_workers(self) -> None:
        """Start what the workers need."""

    @abstractmethod
    def command(self, name: str) -> list[str]:
        """Return the command that starts a worker."""

    def start(self) -> None:
        """Start a worker."""
        name = f"w{self._count}"
        self._count += 1
        self.workers[name] = self.run(self.command(name), name)

    def kill(self, name: str) -> float:
        """Kill a worker, and the agent that started it, by SIGKILL; return when."""
        agent = psutil.Process(self.workers[name].pid)
        victims = [agent, *agent.children(recursive=True)]
        killed_s = time.monotonic()
        for one in victims:
            one.kill()
        self.workers.pop(name).wait()
        return killed_s

    def is_alive(self) -> bool:
        """Return whether any worker, or its agent, runs."""
        return any(one.poll() is None for one in self.workers.values())

    def wait_for_size(self, workers: int, timeout_s: float) -> int:
        """Wait until that number of workers train in one generation; return it.

        Raises
        ------
        TimeoutError
            They do not within the time-out.
        """
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            last = [last_commit(self.state / f"{name}.log") for name in self.workers]
            found = {one.generation for one in last if one and one.size == workers}
            if len(found) == 1 and all(one and one.generation in found for one in last):
                return found.pop()
            if not self.is_alive():
                break
            time.sleep(_POLL_S)
        raise TimeoutError(f"{type(self).__name__}: no {workers} workers in {timeout_s:g} s")

    def commits(self) -> list[Commit]:
        """Return the commits of all workers, by time."""
        return read_commits(self.state)

    def run(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        """Start a process of the job; its output goes to a file."""
        paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
        variables = os.environ | self.variables() | {
            "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"
        }  # fmt: skip
        with (self.state / f"{name}.out").open("wb") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables
            )

    def variables(self) -> dict[str, str]:
        """Return what is added to the environment of processes."""
        return {}

    def close(self) -> None:
        """End all processes and remove their files."""
        for name in [name for name, one in self.workers.items() if one.poll() is None]:
            self.kill(name)
        shutil.rmtree(self.state, ignore_errors=True)


class TorchrunJob(PeerJob):
    """Job of one torchrun agent for each worker. The first agent serves the rendezvous."""

    def before_workers(self) -> None:
        """Start the agent that serves the rendezvous, and wait until it trains."""
        self.start()
        self.wait_for_size(1, START_S)

    def command(self, name: str) -> list[str]:
        """Return the command of an agent."""
        settings = ",".join(f"{key}={value}" for key, value in RENDEZVOUS.items())
        return [
            self.python, "-m", "torch.distributed.run", "--nnodes=1:3", "--nproc-per-node=1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=job",
            f"--rdzv-conf={settings}", "--local-addr=127.0.0.1", "--max-restarts=1000",
            f"--monitor-interval={MONITOR_S}", "-m", _WORKER, "torchrun", str(self.state), name,
        ]  # fmt: skip

    def variables(self) -> dict[str, str]:
        """Return what lets a job grow: workers with a store other than that of the rendezvous."""
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class TorchftJob(PeerJob):
    """Job of one torchft replica group for each worker, and a lighthouse with settings."""

    def __init__(self, python: str, workers: int, lighthouse: dict[str, int]) -> None:
        self._settings = [f"--{key}={value}" for key, value in lighthouse.items()]
        super().__init__(python, workers)

    def before_workers(self) -> None:
        """Start the lighthouse."""
        lighthouse = str(Path(self.python).parent / "torchft_lighthouse")
        bind = f"127.0.0.1:{self.port}"
        command = [lighthouse, "--min_replicas=1", f"--bind={bind}", *self._settings]
        self._lighthouse = self.run(command, "lighthouse")

    def command(self, name: str) -> list[str]:
        """Return the command of a replica."""
        return [self.python, "-m", _WORKER, "torchft", str(self.state), name]

    def variables(self) -> dict[str, str]:
        """Return the address of the lighthouse, and a log without a line for each step."""
        return {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}", "RUST_LOG": "error"}

    def close(self) -> None:
        """End all processes and remove their files."""
        self._lighthouse.kill()
        self._lighthouse.wait()
        super().close()
