"""Live cluster whose nodes have two devices each, for elastic jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from presage.errors import ElasticError
from presage.schedulers.live.agent.tasks.processes import pids
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.training.job_folder import JobFolder
from presage.training.local_job import request
from tests.schedulers.live.cluster import ENVIRONMENT, PRESAGE, WITHIN_S, LiveCluster, until
from tests.schedulers.live.elastic.laws import KeptJournals, Row, check_exactly_once, rows_of
from tests.schedulers.live.job import LEDGER, processes_of

HERE = Path(__file__).parent
WIDEST = "tests.schedulers.live.elastic.policies.widest:Widest"


class ElasticCluster(LiveCluster):
    """Live cluster with elastic jobs, whose leaders' journals are kept."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.leaders, self.steps = folder / "leaders", folder / "steps.jsonl"
        self.journals = KeptJournals(self.leaders, folder / "kept")
        self.epochs: dict[str, int] = {}
        self.policy = WIDEST
        self._numbers: dict[str, int] = {}

    def controller(
        self, *more: object, by: Sequence[object] = (*PRESAGE, "controller")
    ) -> subprocess.Popen[bytes]:
        """Start the controller with a policy that resizes jobs."""
        return super().controller("--policy", self.policy, "--leaders", self.leaders, *more, by=by)

    def agent(
        self,
        node: str,
        *more: object,
        by: Sequence[object] = (*PRESAGE, "agent"),
        kind: str = "cpu-1",
    ) -> subprocess.Popen[bytes]:
        """Start a node's agent with a second device."""
        cpu = max(os.sched_getaffinity(0))
        return super().agent(node, "--device", f"{kind}={cpu}", *more, by=by, kind=kind)

    def elastic(
        self, name: str, epochs: int, sizes: tuple[int, int, int], *how: str,
        sample_s: float = 0.1, checkpoint_s: float = 60.0, **more: Any,
    ) -> pb.Job:  # fmt: skip
        """Return an elastic job; ``sizes`` are its fewest, requested and most devices."""
        self.epochs[name] = epochs
        variables = {"OMP_NUM_THREADS": "1", "TEST_CHECKPOINT_S": str(checkpoint_s)}
        words = [HERE / "job.py", self.steps, epochs, sample_s, *how]
        least, gpus, most = sizes
        settings: dict[str, Any] = {"grace_s": 10.0, "gpus": gpus} | more
        return pb.Job(
            job_id=name,
            command=[sys.executable, *map(str, words)],
            environment={**ENVIRONMENT, LEDGER: str(self.ledger), **variables},
            min_gpus=least,
            max_gpus=most,
            **settings,
        )

    # What a job does ------------------------------------------------------------------------

    def rows(self, name: str) -> list[Row]:
        """Return the steps that the workers of a job have committed so far."""
        return rows_of(self.steps, name)

    def folder_of(self, name: str) -> JobFolder | None:
        """Return the folder of the leader of a job; None if it has none now."""
        number = self.number_of(name)
        found = sorted(path for path in self.leaders.glob(f"*/{number}.*/*") if path.is_dir())
        return JobFolder(found[-1].parent, found[-1].name) if found else None

    def number_of(self, name: str) -> int:
        """Return the number of a job in the order of submission."""
        if name not in self._numbers:
            rows = sorted(self.all().jobs, key=lambda row: row.submitted_unix_s)
            self._numbers |= {row.job.job_id: number for number, row in enumerate(rows)}
        return self._numbers[name]

    def leader_status(self, name: str) -> dict[str, Any]:
        """Return the status of the leader of a job; {} if it does not respond."""
        folder = self.folder_of(name)
        with suppress(ElasticError):
            return request(folder, {"op": "status"}) if folder is not None else {}
        return {}

    def leader_pid(self, name: str) -> int:
        """Return the process id of the leader of a job."""

        def pid() -> int:
            folder = self.folder_of(name)
            with suppress(ElasticError):
                return folder.leader().pid if folder is not None else 0
            return 0

        return until(pid, what=f"leader of {name}")

    def trains(self, name: str, workers: int, attempt: int = 0) -> dict[str, str]:
        """Wait until a number of workers train; return the node of each by its name."""

        def found() -> dict[str, str]:
            status = self.status(name)
            training = {one.name: one.node for one in status.members if one.state == "member"}
            is_right = len(training) == len(status.members) == workers
            is_right &= attempt in (0, status.attempt)
            return training if is_right and self.leader_status(name).get("size") == workers else {}

        return until(found, 2 * WITHIN_S, f"{name} trains with {workers} workers")

    def advances(self, name: str, steps: int = 3) -> int:
        """Wait until a job has committed more steps; return how many."""
        before = max((row.step for row in self.rows(name)), default=-1)
        passed: Callable[[], list[int]] = lambda: [  # noqa: E731
            row.step for row in self.rows(name) if row.step >= before + steps
        ]
        return max(until(passed, what=f"{name} passes step {before + steps}")) + 1

    def workers(self, name: str) -> dict[str, int]:
        """Return the processes of a job's workers, by the worker's name."""
        found = {}
        for pid, task in processes_of(str(self.ledger)).items():
            job, _, worker = unquote(task).rpartition(".")[0].rpartition("/")
            if job == name:
                found[worker] = pid
        return found

    def sizes(self, name: str) -> list[int]:
        """Return the numbers of devices that a job has had."""
        return [change.gpus for change in self.client.explain(name).status.sizes]

    def hurry(self) -> None:
        """Let all jobs end soon: steps take no time from now on."""
        Path(f"{self.steps}.hurry").touch()

    # What must be true ----------------------------------------------------------------------

    def ends(self, name: str, within_s: float = 120.0) -> int:
        """Wait until a job has finished, and check it; return the number of repeated steps."""
        self.hurry()
        phases = self.over(name, within_s=within_s)
        status = self.status(name)
        assert phases[name] == pb.FINISHED, status
        self.is_gone()
        journals = self.journals.of(self.number_of(name))
        return check_exactly_once(self.rows(name), journals, self.epochs[name])

    def is_gone(self) -> None:
        """Check that no process is left, and all devices of the nodes are free."""
        until(lambda: not processes_of(str(self.ledger)), what="no process of a job is left")
        until(lambda: not self.leader_pids(), what="no leader is left")
        until(lambda: not list(self.leaders.glob("*/*")), what="no files of leaders are left")
        until(self._has_free_devices, what="all devices are free")
        until(lambda: not self.shims(), what="no shim is left")

    def _has_free_devices(self) -> bool:
        devices = [one for node in self.all().nodes for one in node.devices]
        return all(one.free_compute_milli == 1000 and not one.job_ids for one in devices)

    def leader_pids(self) -> list[int]:
        """Return the processes of leaders."""
        found, state = [], os.fsencode(self.leaders)
        for pid in pids():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"presage.training.leader" in words and any(
                    word.startswith(state) for word in words
                ):
                    found.append(pid)
        return found

    def close(self) -> None:
        """End all processes."""
        self.journals.close()
        super().close()
        for pid in self.leader_pids():
            self.signal(pid, signal.SIGKILL)
