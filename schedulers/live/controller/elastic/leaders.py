"""Leader processes of elastic jobs, one for each attempt, on the machine of the controller.

Like the jobs, leaders go on without the controller, and the next controller finds them by the names
of their jobs. A leader that was killed is started again and continues from its journal.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from presage.errors import ElasticError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.leader_report import LeaderReport
from presage.schedulers.live.controller.elastic.members import leader_job
from presage.schedulers.live.controller.replayed_state import LiveJob, Stage
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.server.log import log
from presage.system.files.atomic_file import replace_text
from presage.system.text.user_code import describe_exception
from presage.training.job_folder import JobFolder
from presage.training.leader.job_config import JobConfig, write_config
from presage.training.local_job import request, start_leader

STATUS_S = 0.5  # between requests for the status of each leader
IDLE_EXIT_S = 120.0  # a leader ends after so long without a worker; it can be started again
_RETRY_S = 2.0  # between attempts to start a leader
_OVER = frozenset({"done", "failed", "suspended"})
_OVER_STATUSES = frozenset({0, 1, 75})  # exit statuses of leaders of such jobs


class Attempt(NamedTuple):
    """Attempt of an elastic job, as its leader needs to know it.

    Attributes
    ----------
    leader_job : str
        Name of the job for its leader.
    number : int
        Number of the job in the order of submission.
    names : tuple of str
        Workers that are to take part.
    is_ending : bool
        Whether all workers are to leave.
    """

    job_id: str
    leader_job: str
    number: int
    attempt: int
    least: int
    most: int
    names: tuple[str, ...]
    is_ending: bool

    @property
    def folder_name(self) -> str:
        """Name of the folder of the leader's files."""
        return f"{self.number}.{self.attempt}"


def attempts(core: Core) -> list[Attempt]:
    """Return the attempts of elastic jobs that are at nodes."""
    jobs = {job.job_id: job for on_node in core.state.at_node.values() for job in on_node.values()}
    return [_attempt(job) for job in jobs.values() if job.members or job.leaving]


def _attempt(job: LiveJob) -> Attempt:
    spec = job.submitted.job
    return Attempt(
        job.job_id, leader_job(job), job.number, job.attempt, spec.fewest_gpus, spec.most_gpus,
        tuple(member.name for member in job.members), job.stage is Stage.LEAVING,
    )  # fmt: skip


class Leaders:
    """Leaders of the elastic jobs of a cluster.

    Parameters
    ----------
    state : Path
        Folder for the files of leaders.
    host : str
        Address on which leaders listen.
    """

    def __init__(self, controller: Controller, state: Path, host: str) -> None:
        self._controller, self._state, self._host = controller, state, host
        self._leaders: dict[str, _Leader] = {}

    async def run(self) -> None:
        """Start, inform and end leaders as jobs require it, until cancelled."""
        while True:
            seq = self._controller.journal.last_seq
            try:
                await self._step()
            except Exception as error:
                log(logging.ERROR, "leaders not followed", error=describe_exception(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._controller.wait_for_entry_after(seq), STATUS_S)

    async def _step(self) -> None:
        wanted = await self._controller.read(lambda core, _: attempts(core))
        for attempt in wanted:
            await self._follow(attempt)
        await asyncio.to_thread(self._end_others, {one.folder_name for one in wanted})

    async def _follow(self, attempt: Attempt) -> None:
        name = attempt.folder_name
        leader = self._leaders.get(name)
        if leader is None:
            token = self._controller.journal.token(f"leader {name}")
            leader = _Leader(self._state / name, attempt, self._host, token)
            self._leaders[name] = leader
        try:
            status = await asyncio.to_thread(leader.follow, attempt)
        except (ElasticError, OSError) as error:
            if str(error) != leader.problem:
                log(logging.ERROR, "no leader", job=attempt.job_id, error=str(error))
            leader.problem = str(error)
            return
        leader.problem = ""

        def note(core: Core, now_s: float) -> list[str]:
            job = core.state.jobs.get(attempt.job_id)
            if job is None or job.attempt != attempt.attempt:
                return []
            if status is not None:
                core.note_leader(job, leader_report(attempt.attempt, status, now_s))
            is_new = leader.address is not None and core.elastic.set_address(job, leader.address)
            return job.nodes if is_new else []

        for node in await self._controller.read(note):
            self._controller.commands_event(node).set()

    def _end_others(self, wanted: set[str]) -> None:
        """End the leaders of attempts that have ended, and remove their files."""
        for name in self._leaders.keys() - wanted:
            self._leaders.pop(name).end()
        for folder in self._state.glob("*/"):
            if folder.name not in wanted:  # of an earlier controller
                for job in folder.glob("*/"):
                    _stop(JobFolder(folder, job.name))
                shutil.rmtree(folder, ignore_errors=True)


class _Leader:
    """Leader of one attempt.

    Parameters
    ----------
    token : str
        Token of the attempt. It does not change if the controller moves to another machine, so that
        workers can connect again.

    Attributes
    ----------
    address : ElasticWorker or None
        Where it was last seen.
    problem : str
        Why it does not run; "" if it does.
    """

    def __init__(self, state: Path, attempt: Attempt, host: str, token: str) -> None:
        self._state, self._host, self._token = state, host, token
        self._folder = JobFolder(state, attempt.leader_job)
        self._names: tuple[str, ...] = ()  # of its last resize
        self._next_start_s = 0.0
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self.address: pb.ElasticWorker | None = None
        self.problem = ""

    def follow(self, attempt: Attempt) -> dict[str, Any] | None:
        """Return the status of the leader, after it was started or informed if it has to be.

        None stands for a leader that does not respond or has ended.

        Raises
        ------
        ElasticError, OSError
            It cannot be started.
        """
        if self._is_over:
            return None
        status = self._status()
        if status is None:
            self._start(attempt)
            return None
        self._is_over = status["state"] in _OVER
        found = self._folder.leader()
        self.address = pb.ElasticWorker(
            leader_job=self._folder.job, port=found.port, token=found.token
        )
        if attempt.names != self._names and not attempt.is_ending and not self._is_over:
            self._resize(attempt)
        return status

    def end(self) -> None:
        """End the leader and remove its files."""
        _stop(self._folder)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._state, ignore_errors=True)

    def _status(self) -> dict[str, Any] | None:
        if self._process is not None and self._process.poll() is not None:
            self._is_over = self._process.returncode in _OVER_STATUSES
            self._process = None
        try:
            return request(self._folder, {"op": "status"})
        except ElasticError:
            return None

    def _start(self, attempt: Attempt) -> None:
        now_s = time.monotonic()
        if self._is_over or now_s < self._next_start_s:
            return
        self._next_start_s = now_s + _RETRY_S
        self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(self._folder.path / "token", self._token, durable=True)
        if not self._folder.config.exists():
            config = JobConfig(
                workers=min(max(len(attempt.names), attempt.least), attempt.most),
                min_workers=attempt.least,
                max_workers=attempt.most,
                host=self._host,
                idle_exit_s=IDLE_EXIT_S,
            )
            write_config(self._folder.config, config)
        self._process = start_leader(self._folder, self._state)
        self._names = ()  # it may not know the last ones

    def _resize(self, attempt: Attempt) -> None:
        if not attempt.least <= len(attempt.names) <= attempt.most:
            return
        message = {"op": "resize", "workers": len(attempt.names), "names": list(attempt.names)}
        with suppress(ElasticError):  # tried again
            request(self._folder, message)
            self._names = attempt.names


def _stop(folder: JobFolder) -> None:
    with suppress(ElasticError):
        request(folder, {"op": "stop"})


def leader_report(attempt: int, status: dict[str, Any], now_s: float) -> LeaderReport:
    """Return the report in the status of a leader."""
    pace = status["pace"] or {"per_s": 0.0, "seconds": 0.0}
    return LeaderReport(
        attempt,
        status["done"],
        status["saved"],
        status["size"],
        pace["per_s"],
        pace["seconds"],
        {worker["name"]: worker["state"] for worker in status["workers"]},
        now_s,
    )
