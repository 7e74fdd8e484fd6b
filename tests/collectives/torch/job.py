"""Real jobs of a test: one process for each rank, which prints JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.collectives.torch.arbiter import VARIABLE

WORKER = Path(__file__).with_name("worker.py")
ROOT = Path(__file__).parents[3]


class Job:
    """Ranks of a job that run a scenario of ``worker.py``."""

    def __init__(self, scenario, ranks=2, arbiter=None, options=None, environment=None, **only):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        common = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}/src:{ROOT}",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "PRESAGE_INC_JOB": "job",
            **(environment or {}),
        }
        if arbiter is not None:
            common |= {"PRESAGE_INC_ARBITER": "test", VARIABLE: arbiter.address}
        self.lines = [queue.Queue() for _ in range(ranks)]
        self.seen = [[] for _ in range(ranks)]
        self.processes = []
        for rank in range(ranks):
            extra = only.get(f"rank{rank}", {})
            process = subprocess.Popen(
                [sys.executable, str(WORKER), scenario, json.dumps(options or {})],
                env={**common, "RANK": str(rank), **extra},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if not os.environ.get("PRESAGE_TEST_SHOW") else None,
                text=True,
            )
            self.processes.append(process)
            threading.Thread(target=self._read, args=(rank, process), daemon=True).start()

    def _read(self, rank, process):
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                self.lines[rank].put(json.loads(line))
        self.lines[rank].put(None)

    def wait_for(self, rank, condition, timeout_s=60):
        """Return the first line of a rank that meets a condition."""
        end_s = time.monotonic() + timeout_s
        while True:
            line = self.lines[rank].get(timeout=max(0.01, end_s - time.monotonic()))
            if line is None:
                raise AssertionError(f"rank {rank} ended: {self.errors(rank)}")
            self.seen[rank].append(line)
            if condition(line):
                return line

    def results(self, timeout_s=90, ranks=None):
        """Return the last line of each rank, which has ended without an error."""
        ranks = range(len(self.processes)) if ranks is None else ranks
        return [self.wait_for(rank, lambda line: "end" in line, timeout_s) for rank in ranks]

    def errors(self, rank):
        stderr = self.processes[rank].stderr
        return stderr.read()[-3000:] if stderr else ""

    def signal(self, rank, number=signal.SIGKILL):
        self.processes[rank].send_signal(number)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
            if process.stderr:
                process.stderr.close()
