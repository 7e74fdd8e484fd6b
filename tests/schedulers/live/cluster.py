"""Live cluster of processes, whose jobs write a ledger, and the invariants to check."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import presage
from presage.errors import ServiceError
from presage.schedulers.live.agent.tasks.processes import environment, pids, stat
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.client.waiting import TERMINAL_PHASES
from presage.schedulers.live.controller.journal.journal import Journal
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account
from presage.serving.authentication.token_file import add_token
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.job import LEDGER, processes_of
from tests.serving.support.processes import free_port
from tests.support.waiting import wait_until

T = TypeVar("T")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SOURCE = str(Path(presage.__file__).parent.parent)
ENVIRONMENT = {"PYTHONPATH": f"{SOURCE}:{ROOT}"}
PRESAGE = (sys.executable, "-m", "presage", "cluster")
WITHIN_S = 60.0  # timeout of conditions on a busy machine


class Line(NamedTuple):
    """Line of the ledger; see ``job.py``."""

    what: str
    job: str
    attempt: int
    pid: int
    number: int


def until(holds: Callable[[], T], within_s: float = WITHIN_S, what: object = "") -> T:
    """Return the first true result of ``holds``; retry while the controller is unavailable."""
    found: T = wait_until(holds, within_s, what, retried=ServiceError)
    return found


class LiveCluster:
    """Controller and agents, each with one device named after it.

    Attributes
    ----------
    acknowledged : set of str
        Jobs that the controller has accepted.
    command : list of str
        What a controller or an agent is run by, as in a network of its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lease_s: float = 60.0,
        host: str = "127.0.0.1",
        tokens_of: Sequence[str] = (),
    ) -> None:
        self.folder, self.lease_s, self.host = folder, lease_s, host
        self.port = free_port()
        self.target = f"{host}:{self.port}"
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.journal = str(folder / "journal" / "controller.db")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.acknowledged: set[str] = set()
        self.environment: dict[str, str] = {}
        # Beyond loopback, and through relays, clients must send a token.
        self.tokens = folder / "cluster.tokens"
        self.credentials = Credentials()
        if host != "127.0.0.1" or tokens_of:
            limits = {"run-as": account()}
            self.credentials = Credentials(
                add_token(self.tokens, "user", ["submit", "admin"], limits)
            )
            for node in tokens_of or ("n0", "n1"):
                limits = {"node": node, "devices": "cpu-1:2"}
                token = add_token(self.tokens, node, ["agent"], limits)
                (folder / f"{node}.token").write_text(token)
        self.client = ClusterClient(self.target, credentials=self.credentials, timeout_s=20.0)

    # Processes ------------------------------------------------------------------------------

    def start(self, name: str, command: Sequence[object]) -> subprocess.Popen[bytes]:
        """Start a process in a new session, with its output in a file."""
        with self.log(name).open("ab") as said:
            process = subprocess.Popen(
                [*map(str, command)], stdout=said, stderr=said, stdin=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT, **self.environment}, start_new_session=True,
            )  # fmt: skip
        self.running[name] = process
        return process

    def controller(
        self, *more: object, by: Sequence[object] = (*PRESAGE, "controller")
    ) -> subprocess.Popen[bytes]:
        """Start the controller."""
        options = ["--journal", self.journal, "--port", self.port, "--lease-s", self.lease_s]
        if self.host != "127.0.0.1":
            options += ["--host", self.host, "--allow-remote"]
        if self.tokens.exists():
            options += ["--tokens", self.tokens]
        return self.start("controller", [*by, *options, *more])

    def agent(
        self,
        node: str,
        *more: object,
        by: Sequence[object] = (*PRESAGE, "agent"),
        kind: str = "cpu-1",
    ) -> subprocess.Popen[bytes]:
        """Start a node's agent; its device is a processor of any kind."""
        cpu = min(os.sched_getaffinity(0))
        if self.tokens.exists():
            more = ("--token-file", self.folder / f"{node}.token", *more)
        return self.start(
            node,
            [
                *by, "--node", node, "--controller", self.target,
                "--state", self.folder / node, "--checkpoints", self.folder / "checkpoints",
                "--device", f"{kind}={cpu}", "--memory-gib", 2, "--heartbeat-s", 0.5,
                *(["--allow-root-jobs"] if os.geteuid() == 0 else []), *more,
            ],
        )  # fmt: skip

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Signal a process and return its exit status."""
        process = self.running.pop(name)
        process.send_signal(number)
        return process.wait(WITHIN_S)

    def signal(self, pid: int, number: int) -> None:
        """Signal a process, if it runs."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def up(self, *nodes: str) -> None:
        """Start controller and agents, and wait until all nodes have joined."""
        self.controller()
        for node in nodes:
            self.agent(node)
        self.connected(*nodes)

    def connected(self, *nodes: str) -> None:
        """Wait until exactly these nodes get jobs."""
        until(lambda: {n.name for n in self.all().nodes if not n.reason} == set(nodes), what=nodes)

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.folder / f"{name}.log"

    # Jobs -----------------------------------------------------------------------------------

    def job(
        self, name: str, iterations: int = 20, step_s: float = 0.05, every: int = 0, *how: str,
        grace_s: float = 10.0, **more: Any,
    ) -> pb.Job:  # fmt: skip
        """Return a job that writes the ledger."""
        words = [HERE / "job.py", self.ledger, iterations, step_s, every, *how]
        return pb.Job(
            job_id=name,
            command=[sys.executable, *map(str, words)],
            environment={**ENVIRONMENT, LEDGER: str(self.ledger)},
            iterations=iterations,
            grace_s=grace_s,
            **more,
        )

    def submit(self, *jobs: pb.Job) -> None:
        """Submit jobs; retry until the controller accepts them."""
        until(lambda: [self.client.submit(jobs)])
        self.acknowledged |= {job.job_id for job in jobs}

    def cancel(self, *names: str) -> None:
        """Repeat until the controller has recorded it."""

        def done() -> bool:
            self.client.cancel(names)
            return True

        until(done)

    def drain(self, node: str, *, undo: bool = False, evict: bool = False) -> None:
        """Repeat until the controller has recorded it."""
        until(lambda: [self.client.drain(node, undo=undo, evict=evict)])

    def all(self) -> pb.ListResponse:
        """Return all jobs, including ended ones, and nodes."""
        return self.client.list(ended=True)

    def status(self, name: str) -> pb.JobStatus:
        """Return the status of a job."""
        return until(lambda: self.client.list([name], ended=True)).jobs[0]

    def phases(self) -> dict[str, int]:
        """Return the phases of all jobs."""
        return {row.job.job_id: row.phase for row in until(self.all).jobs}

    def runs(self, name: str, attempt: int = 1, beyond: int = 0) -> Line:
        """Wait until a job's attempt has written a line, and return it."""
        wanted = ("did", name, attempt)

        def found() -> list[Line]:
            lines = [line for line in self.lines() if line[:3] == wanted]
            return [line for line in lines if line.number > beyond]

        return until(found, what=f"{name}.{attempt} does more than {beyond}")[0]

    def over(self, *names: str, within_s: float = 2 * WITHIN_S) -> dict[str, int]:
        """Wait until jobs have ended; return the phases of all jobs."""

        def ended() -> dict[str, int]:
            phases = self.phases()
            return phases if all(phases.get(n) in TERMINAL_PHASES for n in names) else {}

        return until(ended, within_s, f"{names} over")

    def records(self) -> list[dict[str, Any]]:
        """Return all journal records; the controller must not run."""
        with Journal.open(self.journal) as journal:
            return [entry.record for entry in journal.read()]

    def lines(self) -> list[Line]:
        """Return the lines of the ledger."""
        rows = [line.split() for line in self.ledger.read_text().splitlines()]
        return [Line(w, job, int(a), int(p), int(n)) for w, job, a, p, n in rows]

    def starts(self, name: str) -> list[Line]:
        """Return the attempts of a job in the order of their starts."""
        return [line for line in self.lines() if (line.what, line.job) == ("start", name)]

    # What must be true ----------------------------------------------------------------------

    def check(self, *, run_once: Sequence[str] = ()) -> None:
        """Check that no job is lost, ran twice at once, or repeated saved work."""
        phases = self.phases()
        assert self.acknowledged <= phases.keys(), "a job that was acknowledged is lost"
        lines = self.lines()
        assert [line for line in lines if line.what == "beside"] == []
        started = Counter((line.job, line.attempt) for line in lines if line.what == "start")
        assert [name for name, times in started.items() if times > 1] == [], "started twice"
        saved: dict[str, int] = defaultdict(int)
        for line in lines:
            if line.what == "saved":
                saved[line.job] = max(saved[line.job], line.number)
            if line.what == "start":
                assert line.number >= saved[line.job], f"{line}: {saved[line.job]} were saved"
        for job, phase in phases.items():
            ends = [line for line in lines if (line.what, line.job) == ("end", job)]
            assert len(ends) == (phase == pb.FINISHED) or phase == pb.CANCELLED, (job, phase, ends)
        for name in run_once:
            assert len(self.starts(name)) == 1, self.starts(name)
        until(lambda: not processes_of(str(self.ledger)), what="no process of a job is left")

    def close(self) -> None:
        """End all processes."""
        self.client.close()
        for name in list(self.running):
            self.kill(name)
        for pid in pids():
            said = environment(pid).get(b"PRESAGE_STATE", b"")
            if said.startswith(os.fsencode(self.folder)):
                self.signal(pid, signal.SIGKILL)
        for pid in self.shims():
            self.signal(pid, signal.SIGKILL)

    def shims(self) -> list[int]:
        """Return the shims of this cluster's tasks."""
        found = []
        for pid in pids():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                ours = os.fsencode(self.folder) in words and b"tasks.shim import" in words
                if ours and (said := stat(pid)) and said.state not in "ZX":
                    found.append(pid)
        return found
