"""Leader processes of elastic jobs, one for each attempt, on the machine of the controller.

Like the jobs, leaders go on without the controller, and the next controller finds them by the names
of their jobs. A leader that was killed is started again and continues from its journal.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import suppress
from pathlib import Path

from presage.errors import ElasticError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.attempts import Attempt, attempts
from presage.schedulers.live.controller.elastic.leader_process import (
    LeaderProcess,
    leader_report,
    stop_leader,
)
from presage.serving.server.log import log
from presage.system.text.user_code import describe_exception
from presage.training.job_folder import JobFolder

STATUS_S = 0.5  # between requests for the status of each leader


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
        self._leaders: dict[str, LeaderProcess] = {}

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
        required = await self._controller.read(lambda core, _: attempts(core))
        for attempt in required:
            await self._follow(attempt)
        await asyncio.to_thread(self._end_others, {one.folder_name for one in required})

    async def _follow(self, attempt: Attempt) -> None:
        name = attempt.folder_name
        leader = self._leaders.get(name)
        if leader is None:
            token = self._controller.journal.token(f"leader {name}")
            leader = LeaderProcess(self._state / name, attempt, self._host, token)
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

    def _end_others(self, required: set[str]) -> None:
        """End the leaders of attempts that have ended, and remove their files."""
        for name in self._leaders.keys() - required:
            self._leaders.pop(name).end()
        for folder in self._state.glob("*/"):
            if folder.name not in required:  # of an earlier controller
                for job in folder.glob("*/"):
                    stop_leader(JobFolder(folder, job.name))
                shutil.rmtree(folder, ignore_errors=True)
