"""Leader processes of elastic jobs, one for each attempt, on the machine of the controller.

Like the jobs, leaders go on without the controller, and the next controller finds them by the names
of their jobs. A leader that was killed is started again and continues from its journal.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from presage.errors import ElasticError
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.attempts import FOLDER_NAME, Attempt, attempts
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
    folder : Path
        Folder for the files of leaders; each cluster has a folder of its own in it.
    host : str
        Address on which leaders listen.
    """

    def __init__(self, controller: Controller, folder: Path, host: str) -> None:
        self._controller, self._host = controller, host
        self._state = folder / controller.core.state.cluster_id
        self._leaders: dict[str, LeaderProcess] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._has_leftovers = True  # perhaps, of an earlier controller

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
        """Follow each leader in a task of its own, since one that hangs must not delay others."""
        required = {one.folder_name: one for one in await self._controller.read(_attempts)}
        self._following = {name: task for name, task in self._following.items() if not task.done()}
        for name, attempt in required.items():
            if name not in self._following:
                self._following[name] = asyncio.create_task(self._follow(attempt))
        ended = self._leaders.keys() - required.keys() - self._following.keys()
        leaders = [self._leaders.pop(name) for name in ended]
        if leaders or self._has_leftovers:
            self._has_leftovers = False
            await asyncio.to_thread(self._end, leaders, {*required, *self._leaders})

    async def _follow(self, attempt: Attempt) -> None:
        name = attempt.folder_name
        leader = self._leaders.get(name)
        if leader is None:
            token = self._controller.journal.token(f"leader {name}")
            leader = LeaderProcess(self._state / name, attempt, self._host, token)
            self._leaders[name] = leader
        try:
            status = await asyncio.to_thread(leader.follow, attempt)
        except Exception as error:
            is_expected = isinstance(error, ElasticError | OSError)
            problem = str(error) if is_expected else describe_exception(error)
            if problem != leader.problem:
                log(logging.ERROR, "leader not followed", job=attempt.job_id, error=problem)
            leader.problem = problem
            return
        if leader.problem:
            log(logging.INFO, "leader is followed again", job=attempt.job_id)
        leader.problem = ""
        nodes = await self._controller.read(partial(_note_status, attempt, leader, status))
        for node in nodes:
            self._controller.commands_event(node).set()

    def _end(self, leaders: list[LeaderProcess], kept: set[str]) -> None:
        """End leaders of attempts that have ended, also those of an earlier controller."""
        for leader in leaders:
            leader.end()
        for config in self._state.glob("*/*/job.json"):
            folder = config.parents[1]
            if folder.name not in kept and FOLDER_NAME.fullmatch(folder.name):
                stop_leader(JobFolder(folder, config.parent.name))
                shutil.rmtree(folder, ignore_errors=True)


def _attempts(core: Core, _now_s: float) -> list[Attempt]:
    return attempts(core)


def _note_status(
    attempt: Attempt,
    leader: LeaderProcess,
    status: dict[str, Any] | None,
    core: Core,
    now_s: float,
) -> list[str]:
    """Enter the status of a leader; return the nodes whose commands have its address newly."""
    job = core.state.jobs.get(attempt.job_id)
    if job is None or job.attempt != attempt.attempt:
        return []
    if status is not None:
        report = leader_report(attempt.attempt, status, leader.rejection, now_s)
        core.note_leader(job, report)
    is_new = leader.address is not None and core.elastic.set_address(job, leader.address)
    return job.nodes if is_new else []
