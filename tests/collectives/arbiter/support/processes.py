"""Arbiter and jobs of tests, as processes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from presage.collectives.arbiter.client import ArbiterClient


class ArbiterProcess:
    """``presage inc arbiter``, or a module of tests that takes the same options."""

    def __init__(self, switch, journal, *more, port=0, module=None, env=None, name="tor"):
        command = [sys.executable, "-m", *(module or ("presage", "inc", "arbiter"))]
        address = f"{name}={switch.host}:{switch.port},mbit=100,latency_us=50"
        self.process = subprocess.Popen(
            [*command, "--switch", address, "--journal", str(journal), "--port", str(port), *more],
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self.target = self._wait_for_target()

    def _wait_for_target(self) -> str:
        assert self.process.stderr
        os.set_blocking(self.process.stderr.fileno(), False)
        end_s, text = time.monotonic() + 30, ""
        while time.monotonic() < end_s:
            select.select([self.process.stderr], [], [], 0.2)
            text += (self.process.stderr.read() or b"").decode()
            if found := re.search(r"arbitrating at (\S+)", text):
                self.lines = text.splitlines()
                return found[1]
            if self.process.poll() is not None:
                break
        self.lines = text.splitlines()
        return ""

    @property
    def port(self) -> int:
        return int(self.target.rpartition(":")[2])

    def log(self) -> str:
        """Return what the arbiter has logged since it printed its address."""
        assert self.process.stderr
        return (self.process.stderr.read() or b"").decode()

    def status(self):
        with ArbiterClient(self.target) as client:
            return client.status()

    def kill(self, number=signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stderr:
            self.process.stderr.close()


class JobProcesses:
    """Ranks of one job, each a process."""

    def __init__(
        self, folder: Path, arbiter: str, job: str, ranks: int = 2, arbiters=(), **options
    ) -> None:
        self.folder, self.ranks, self.job = folder / job, ranks, job
        self.folder.mkdir(parents=True)
        rows = [
            {"folder": str(self.folder), "arbiter": dict(arbiters).get(rank, arbiter),
             "job": job, "rank": rank, "ranks": ranks, **options}
            for rank in range(ranks)
        ]  # fmt: skip
        module = "tests.collectives.arbiter.support.rank_process"
        self.processes = [
            subprocess.Popen([sys.executable, "-m", module, json.dumps(row)]) for row in rows
        ]

    def wait(self, timeout_s: float = 60.0) -> list[int]:
        return [process.wait(timeout_s) for process in self.processes]

    def rows(self, rank: int = 0) -> list[list]:
        """Return number, way, reason, time and epoch of each AllReduce."""
        path = self.folder / f"{rank}.log"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def inc_since(self, since_s: float) -> bool:
        """Return whether the switch has computed an AllReduce since a Unix time."""
        return any(row[1] == "INC" and row[3] >= since_s for row in self.rows())

    def last_s(self) -> float:
        """Return the Unix time at which the last AllReduce ended."""
        return float(self.rows()[-1][3])

    def ways(self, rank: int = 0) -> dict[int, bool]:
        """Return for each number whether the switch computed it."""
        return {number: way == "INC" for number, way, *_ in self.rows(rank)}

    def check_no_number_is_split(self) -> None:
        first = self.ways(0)
        for rank in range(1, self.ranks):
            other = self.ways(rank)
            split = [n for n in first.keys() & other.keys() if first[n] != other[n]]
            assert not split, f"job {self.job}: numbers {split[:5]} are split"

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
