"""Pauses of an elastic job when workers join, leave and are killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import Commit, pause_after_s, pause_s, read_commits
from benchmarks.elastic.workers import CONTEXT, elastic_worker
from presage.errors import ElasticError
from presage.training.job_folder import JobFolder
from presage.training.leader.job_config import JobConfig
from presage.training.local_job import prepare, request, start_leader

HANG_S = 30.0
_EPOCHS = 1_000_000
_POLL_S = 0.05  # an answer takes time of the leader
_BETWEEN_S = 0.25  # of training between two changes


class ElasticJob:
    """Elastic job of processes on this machine."""

    def __init__(self, workers: int, epochs: int = _EPOCHS) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="elastic-"))
        self.folder = JobFolder(self.state, "job")
        prepare(self.folder, JobConfig(workers, silence_s=60.0))
        self._leader = start_leader(self.folder, self.state)
        self.workers: dict[str, Any] = {}
        self._count, self._epochs = 0, epochs
        for _ in range(workers):
            self.start()
        if epochs == _EPOCHS:
            self.wait_for_size(workers)

    def start(self) -> None:
        """Start a worker."""
        name = f"w{self._count}"
        self._count += 1
        self.workers[name] = CONTEXT.Process(
            target=elastic_worker, args=(str(self.state), name, self._epochs), daemon=True
        )
        self.workers[name].start()

    def resize(self, workers: int) -> None:
        """Request another number of workers."""
        request(self.folder, {"op": "resize", "workers": workers})

    def status(self) -> dict[str, Any]:
        """Return the status of the job."""
        return request(self.folder, {"op": "status"})

    def wait_for_size(self, workers: int) -> int:
        """Wait until all members of a generation of that size run; return its number."""
        end_s = time.monotonic() + HANG_S
        while time.monotonic() < end_s:
            with suppress(ElasticError):
                status = self.status()
                is_running = [w["phase"] == "running" for w in status["workers"]]
                if status["size"] == workers == len(is_running) and all(is_running):
                    return int(status["generation"])
            time.sleep(_POLL_S)
        raise TimeoutError(f"no generation of {workers} workers: {status}")

    def commits(self) -> list[Commit]:
        """Return the commits of all workers, by time."""
        return read_commits(self.state)

    def join(self) -> None:
        """Wait until all workers have ended."""
        for process in self.workers.values():
            process.join()

    def alive(self) -> list[str]:
        """Return the names of workers that run."""
        return [name for name, process in self.workers.items() if process.is_alive()]

    def close(self) -> None:
        """End all processes and remove their files."""
        for process in self.workers.values():
            if process.is_alive():
                process.kill()
            process.join()
        self._leader.kill()
        self._leader.wait()
        shutil.rmtree(self.state, ignore_errors=True)


def planned_pauses(changes: int) -> dict[str, list[float]]:
    """Return the seconds beyond a step of growing from 2 to 3 workers, and of shrinking."""
    job = ElasticJob(2)
    pauses: dict[str, list[float]] = {"grow": [], "shrink": []}
    kinds: dict[int, str] = {}
    try:
        for i in range(changes):
            time.sleep(_BETWEEN_S)
            size = 3 if i % 2 == 0 else 2
            job.resize(size)
            if size == 3:
                job.start()
            kinds[job.wait_for_size(size)] = "grow" if size == 3 else "shrink"
        time.sleep(_BETWEEN_S)
        commits = job.commits()
    finally:
        job.close()
    for generation, kind in kinds.items():
        pauses[kind].append(pause_s(commits, generation))
    return pauses


def killed_pauses(size: int, kills: int, seed: int) -> tuple[list[float], int]:
    """Return the seconds beyond a step after each kill -9 of a member, and the number of hangs."""
    rng = random.Random(seed)
    job = ElasticJob(size)
    pauses: list[float] = []
    hangs = 0
    try:
        for _ in range(kills):
            time.sleep(_BETWEEN_S * rng.uniform(0.5, 1.5))
            victim = job.workers[rng.choice(job.alive())]
            killed_s = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            try:
                generation = job.wait_for_size(size - 1)
                time.sleep(_BETWEEN_S / 2)
                pauses.append(pause_after_s(job.commits(), generation, killed_s))
            except TimeoutError as error:
                print(error)
                hangs += 1
                break
            job.start()
            job.wait_for_size(size)
    finally:
        job.close()
    return pauses, hangs
