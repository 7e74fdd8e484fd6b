"""Clients of a run: they submit, cancel, read, drain and watch, and record every operation."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.errors import InvalidJobError, ServiceError, UnknownJobError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.history.checker.models import TERMINAL
from tests.history.record import Recorder
from tests.schedulers.live.cluster import ENVIRONMENT
from tests.schedulers.live.job import LEDGER

JOB = Path(__file__).with_name("job.py")
STEP_S = 0.05
_NOT_WRITTEN = "free space on its disk"  # the journal says so where certainly nothing was written


class Jobs:
    """Jobs that any client has tried to submit, and those that are known to be over.

    Parameters
    ----------
    most_open : int
        No more are submitted while so many may not be over.
    long : float
        Part of the jobs that take 20 to 30 s; the others take 0.5 to 4 s.
    """

    def __init__(self, ledger: Path, grace_s: float, most_open: int, long: float) -> None:
        self.batches: list[list[pb.Job]] = []
        self.over: set[str] = set()
        self.acknowledged: set[str] = set()
        self._ledger, self._grace_s, self._most_open = ledger, grace_s, most_open
        self._long = long
        self._lock = threading.Lock()

    def new(self, draw: random.Random) -> list[pb.Job] | None:
        """One or two new jobs to submit together; None while enough are open."""
        with self._lock:
            names = sum(map(len, self.batches))
            if names - len(self.over) >= self._most_open:
                return None
            count = 2 if draw.random() < 0.2 else 1
            batch = [self._job(f"j{names + i}", draw) for i in range(count)]
            self.batches.append(batch)
            return batch

    def any(self, draw: random.Random, recent: int = 20) -> list[pb.Job] | None:
        """A batch that was submitted, mostly one of the last."""
        with self._lock:
            among = self.batches[-recent:] if draw.random() < 0.8 else self.batches
            return draw.choice(among) if among else None

    def _job(self, name: str, draw: random.Random) -> pb.Job:
        how = draw.choices(
            ["", "fails", "breaks", "overflows", "deaf", "forks"], [12, 2, 1, 2, 2, 2]
        )[0]
        # A long one is still alive when the controller has given its node up.
        iterations = draw.randint(400, 600) if draw.random() < self._long else draw.randint(10, 80)
        words = [JOB, self._ledger, iterations, STEP_S, draw.choice([0, 5]), how]
        return pb.Job(
            job_id=name,
            command=[sys.executable, *map(str, words)],
            environment={**ENVIRONMENT, LEDGER: str(self._ledger)},
            iterations=iterations,
            grace_s=self._grace_s,
            latency_sensitive=draw.random() < 0.15,
            priority=draw.choice([0, 0, 0, 1]),
            gpus=2 if draw.random() < 0.05 else 1,
            retries=2 if how != "breaks" else 0,
        )


class Process:
    """A client process: one operation at a time; after an unknown outcome it goes by a new name."""

    def __init__(self, name: str, client: ClusterClient, recorder: Recorder) -> None:
        self._name, self.client, self._recorder = name, client, recorder
        self._generation = 0

    @property
    def name(self) -> str:
        """As the history has it."""
        return f"{self._name}.{self._generation}" if self._generation else self._name

    def do(
        self,
        what: str,
        asked: Any,
        call: Callable[[], Any],
        said: Callable[[Any], Any] = lambda _: None,
    ) -> Any:
        """Record an operation; what it returned, or None where it was refused or is unknown."""
        op = self._recorder.invoke(self.name, what, asked)
        try:
            found = call()
            value = said(found)
        except UnknownJobError:
            self._recorder.write("fail", self.name, what, "absent", op)
        except InvalidJobError as error:
            self._recorder.write("fail", self.name, what, f"refused: {error}", op)
        except ServiceError as error:
            kind = "fail" if _NOT_WRITTEN in str(error) else "unknown"
            self._recorder.write(kind, self.name, what, str(error)[:200], op)
            self._generation += kind == "unknown"
        else:
            self._recorder.write("ok", self.name, what, value, op)
            return found
        return None

    def submit(self, batch: list[pb.Job]) -> bool:
        """Submit jobs together; whether that was acknowledged."""
        names = [job.job_id for job in batch]
        said = self.do(
            "submit", names, lambda: self.client.submit(batch), lambda known: {"known": known}
        )
        return said is not None

    def submit_another(self, job: pb.Job) -> None:
        """Submit another job of the name of one that was acknowledged: it has to be refused."""
        other = pb.Job()
        other.CopyFrom(job)
        other.priority += 5
        self.do("submit another", [job.job_id], lambda: self.client.submit([other]))

    def cancel(self, name: str) -> None:
        """Cancel a job."""
        self.do("cancel", name, lambda: self.client.cancel([name]))

    def drain(self, node: str, *, undo: bool = False, evict: bool = False) -> bool:
        """Drain a node, or undo that; whether it was acknowledged."""
        call = lambda: list(self.client.drain(node, undo=undo, evict=evict))  # noqa: E731
        return self.do("drain", [node, not undo], call) is not None

    def read(self, name: str) -> None:
        """Read a job by a list request for it."""
        self.do("read", name, lambda: self.client.list([name], ended=True), _said_of_jobs)

    def explain(self, name: str) -> None:
        """Read a job by its explanation."""
        self.do("read", name, lambda: self.client.explain(name), lambda e: _rows([e.status]))

    def list(self) -> pb.ListResponse | None:
        """Read all jobs and nodes."""
        found: pb.ListResponse | None = self.do(
            "list", None, lambda: self.client.list(ended=True), _said_of_all
        )
        return found


class Client(threading.Thread):
    """Thread that acts as a user until it is stopped."""

    def __init__(
        self, process: Process, jobs: Jobs, seed: str, nodes: list[str], stopped: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._process, self._jobs, self._nodes, self._stopped = process, jobs, nodes, stopped
        self._draw = random.Random(seed)

    def run(self) -> None:
        """Do one thing after another."""
        while not self._stopped.wait(self._draw.expovariate(3.0)):
            self._next(self._draw.random())

    def _next(self, chance: float) -> None:
        draw, process = self._draw, self._process
        batch = self._jobs.any(draw)
        if chance < 0.35 or batch is None:
            new = self._jobs.new(draw)
            if new is not None:
                self._submit(new)
                return
        if batch is None or chance < 0.55:
            self._note_over(process.list())
            return
        job = draw.choice(batch)
        if chance < 0.62:
            self._submit(batch)
        elif chance < 0.64 and job.job_id in self._jobs.acknowledged:
            process.submit_another(job)
        elif chance < 0.70:
            process.cancel(job.job_id)
        elif chance < 0.73:
            process.drain(draw.choice(self._nodes), undo=draw.random() < 0.8)
        elif chance < 0.85:
            process.explain(job.job_id)
        else:
            process.read(job.job_id)

    def _submit(self, batch: list[pb.Job]) -> None:
        if self._process.submit(batch):
            self._jobs.acknowledged |= {job.job_id for job in batch}

    def _note_over(self, found: pb.ListResponse | None) -> None:
        if found is not None:
            self._jobs.over |= {
                row.job.job_id for row in found.jobs if pb.Phase.Name(row.phase) in TERMINAL
            }


class Watcher(threading.Thread):
    """Follows the journal, and asks for what it has missed whenever its stream breaks."""

    def __init__(
        self, name: str, client: ClusterClient, recorder: Recorder, stopped: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._name, self._client, self._recorder = name, client, recorder
        self._stopped = stopped
        self.last_entry = 0

    def run(self) -> None:
        """Record events until the thread is stopped."""
        while not self._stopped.is_set():
            with suppress(ServiceError):
                for event in self._client.watch(after=self.last_entry):
                    record_event(self._recorder, self._name, event)
                    self.last_entry = event.entry
            self._stopped.wait(0.2)


def record_event(recorder: Recorder, process: str, event: pb.Event) -> None:
    """Record an event without its time, which is of a clock that jumps."""
    value = {
        "entry": event.entry,
        "what": event.type,
        "job": event.job_id,
        "node": event.node,
        "detail": event.details,
    }
    recorder.write("event", process, event.type, value)


def watched_to(recorder: Recorder, client: ClusterClient, last_entry: int, within_s: float) -> bool:
    """Record all events from the first to an entry; whether they came in time."""
    until_s = time.monotonic() + within_s
    reached = 0
    while reached < last_entry and time.monotonic() < until_s:
        with suppress(ServiceError):
            for event in client.watch(after=reached):
                record_event(recorder, "final", event)
                reached = event.entry
                if reached >= last_entry:
                    break
    return reached >= last_entry


def _rows(rows: Iterable[pb.JobStatus]) -> dict[str, Any]:
    return {"jobs": [[row.job.job_id, pb.Phase.Name(row.phase), row.attempt] for row in rows]}


def _said_of_jobs(found: pb.ListResponse) -> dict[str, Any]:
    return {**_rows(found.jobs), "entry": found.last_entry}


def _said_of_all(found: pb.ListResponse) -> dict[str, Any]:
    drained = {node.name: node.drained for node in found.nodes}
    return {**_said_of_jobs(found), "drained": drained}
