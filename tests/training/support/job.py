"""An elastic job of real processes: a leader, and workers forked from a server with torch."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from presage.errors import ElasticError
from presage.system.files.atomic_file import replace_text
from presage.training.job_folder import JobFolder
from presage.training.leader.job_config import JobConfig, read_config, write_config
from presage.training.local_job import prepare, request, start_leader
from tests.support.waiting import is_true_within, wait_until
from tests.training.support.worker_process import run_worker

os.environ.setdefault("OMP_NUM_THREADS", "1")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.training.support.worker_process"])
WAIT_S = 100.0
ROOT = Path(__file__).parents[3]


class Job:
    """Job with the name ``job`` in a folder."""

    def __init__(self, state: Path, name: str = "job", **settings: Any) -> None:
        self.state, self.folder = state, JobFolder(state, name)
        self.leader_folder = self.folder
        settings = {"silence_s": 60.0} | settings
        prepare(self.folder, JobConfig(**settings))
        self.leader = start_leader(self.folder, state)
        self.workers: dict[str, Any] = {}

    def start(self, *names: str, **options: Any) -> None:
        for name in names:
            options = {"state": str(self.state)} | options
            arguments = (str(self.state), self.folder.job, name, options)
            self.workers[name] = CONTEXT.Process(target=run_worker, args=arguments, daemon=True)
            self.workers[name].start()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        os.kill(self.workers[name].pid, number)

    def kill_leader(self) -> None:
        self.leader.kill()
        self.leader.wait()

    def restart_leader(self) -> None:
        self.leader = start_leader(self.folder, self.state)

    def start_successor(self) -> None:
        """Start a leader with another token in another folder, as does another controller.

        Its address and token are copied to the folder in which workers look, as agents do.
        """
        state = self.state / "successor"
        self.leader_folder = JobFolder(state, self.folder.job)
        config = replace(read_config(self.folder.config), is_successor=True)
        self.leader_folder.create()
        write_config(self.leader_folder.config, config)
        self.leader = start_leader(self.leader_folder, state)
        for name in ("token", "leader.json"):
            content = (self.leader_folder.path / name).read_text()
            replace_text(self.folder.path / name, content, durable=False)

    def resize(self, workers: int, names: list[str] | None = None) -> None:
        request(self.folder, {"op": "resize", "workers": workers, "names": names})

    def status(self) -> dict[str, Any]:
        return request(self.folder, {"op": "status"})

    def wait_for(self, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is as required, and return it."""
        statuses: list[dict[str, Any]] = [{}]

        def reached() -> bool:
            statuses.append(self.status())
            return is_reached(statuses[-1])

        wait_until(
            reached, WAIT_S, lambda: f"{statuses[-1]}; {self.results()}", retried=ElasticError
        )
        return statuses[-1]

    def wait_at(self, gate: str) -> None:
        """Wait until a worker has reached a gate."""
        wait_until((self.state / f"{gate}.reached").exists, WAIT_S, lambda: f"{gate}: {self.log()}")

    def wait_connected(self, count: int) -> None:
        """Wait until a number of workers are connected."""
        self.wait_for(lambda s: len(s["workers"]) == count)

    def wait_paused_or_at(self, gate: str) -> None:
        """Wait until workers wait for a leader that is down, or have reached a gate."""
        is_true_within((self.state / f"{gate}.reached").exists, 1.0)

    def open(self, gate: str) -> None:
        (self.state / f"{gate}.open").touch()

    def wait_ready(self, count: int) -> None:
        """Wait until a number of workers are ready, in addition to the members."""
        self.wait_for(lambda s: sum(w["state"] == "ready" for w in s["workers"]) == count)

    def join(self, *names: str) -> dict[str, dict[str, Any]]:
        """Wait until workers end, all by default, and return their results."""
        for name in names or tuple(self.workers):
            self.workers[name].join(WAIT_S)
            assert self.workers[name].exitcode is not None, f"{name} hangs: {self.status()}"
        return self.results()

    def finish(self) -> dict[str, dict[str, Any]]:
        """Wait until the job is done, and return the results of workers that ended normally."""
        assert self.leader.wait(WAIT_S) == 0, self.log()
        return self.join()

    def log(self) -> str:
        return (self.leader_folder.path / "leader.log").read_text()

    def results(self) -> dict[str, dict[str, Any]]:
        paths = self.state.glob("*.json")
        return {path.stem: json.loads(path.read_text()) for path in sorted(paths)}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return what a worker logged; a line that a kill interrupted is left out."""
        path = self.state / f"{name}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.leader_folder.journal.read_text().splitlines()]

    def close(self) -> None:
        for process in self.workers.values():
            if process.is_alive():
                process.kill()
                process.join()
        if self.leader.poll() is None:
            self.kill_leader()


@contextmanager
def running(state: Path, name: str = "job", **settings: Any) -> Iterator[Job]:
    job = Job(state, name, **settings)
    try:
        yield job
    finally:
        job.close()
