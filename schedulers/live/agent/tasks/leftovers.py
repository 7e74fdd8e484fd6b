"""Removal of leftovers of tasks without a shim: processes, control groups, folders."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.connection.lease import boot_id
from presage.schedulers.live.agent.isolation.control_groups import find_isolation, task_group_names
from presage.schedulers.live.agent.isolation.job_environment import STATE, TASK
from presage.schedulers.live.agent.tasks.processes import (
    Stat,
    environment,
    pids,
    real_uid,
    send,
    stat,
    stat_listed,
)
from presage.schedulers.live.agent.tasks.task_folder import TASKS, TaskFolder
from presage.schedulers.live.agent.tasks.task_process import remove_leftovers

_KILLING_S = 5.0
_REMOVING_S = 1.0


def sweep(state: Path) -> frozenset[int]:
    """Kill the processes of a state folder's tasks without a shim, and remove their groups.

    A task's processes are found by their control groups, which they cannot leave. Without control
    groups they are found by their initial environment or by the session of the job's first
    process, if they also run as the task's account. Processes that have changed both are known
    only to their shim, which they cannot kill unless they run as its account.

    Returns
    -------
    frozenset of int
        Killed processes. Call again while there are any: a process may take time to end.
    """
    state = state.resolve()
    killed: set[int] = set()
    until_s = time.monotonic() + _KILLING_S
    while (found := _orphans(state)) and time.monotonic() < until_s:
        stopped = {pid: known for pid, known in found.items() if pid not in killed}
        send(signal.SIGSTOP, stopped)  # no process escapes by a fork
        send(signal.SIGKILL, found)
        killed |= found.keys()
        time.sleep(0.01)
    for name in task_group_names(state):
        if not _is_held(state, name):
            find_isolation(state, name).remove()
    remove_leftovers(state, _REMOVING_S)
    return frozenset(killed)


def _orphans(state: Path) -> dict[int, Stat]:
    found: dict[str, dict[int, Stat]] = {}
    sessions = _sessions(state)
    for pid in pids():
        known = stat(pid)
        if known is None or pid == os.getpid():
            continue
        for task in {_task_from_environment(pid, state), sessions.get(known.session, "")} - {""}:
            if _may_belong_to(pid, state, task):
                found.setdefault(task, {})[pid] = known
    for name in task_group_names(state):
        found.setdefault(name, {}).update(stat_listed(find_isolation(state, name).pids))
    # Checked last: a shim holds its folder from before its first child until after the last.
    return {
        pid: known
        for name, members in found.items()
        if not _is_held(state, name)
        for pid, known in members.items()
        if known.state not in "ZX"
    }


def _task_from_environment(pid: int, state: Path) -> str:
    """Return the task that a process' environment names; "" if none. It may be forged."""
    variables = environment(pid)
    task = os.fsdecode(variables.get(TASK.encode(), b""))
    is_ours = variables.get(STATE.encode()) == os.fsencode(state)
    return task if is_ours and "/" not in task and not task.startswith(".") else ""


def _sessions(state: Path) -> dict[int, str]:
    """Return the task of each session of a job without a recorded exit, by its first process."""
    found = {}
    for path in (state / TASKS).glob("[!.]*"):
        folder = TaskFolder(path)
        shim = None if folder.over else folder.shim_state()
        if shim is None or shim.job_pid is None or shim.boot_id != boot_id():
            continue
        leader = stat(shim.job_pid)  # its id is not reused while its session exists
        if leader is None or leader.start == shim.job_start:
            found[shim.job_pid] = path.name
    return found


def _may_belong_to(pid: int, state: Path, task: str) -> bool:
    """Return whether a process runs as a task's account, which other processes cannot assume."""
    try:
        account = TaskFolder(state / TASKS / task).spec().account
    except InvalidJobError:  # its folder is gone: the environment is the only evidence
        return True
    return real_uid(pid) == (os.geteuid() if account is None else account.uid)


def _is_held(state: Path, name: str) -> bool:
    return TaskFolder(state / TASKS / name).holder() is not None
