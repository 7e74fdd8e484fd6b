"""What is left of tasks that nobody answers for: processes, groups, folders."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.isolation.control_groups import find_isolation, names_of_groups
from presage.schedulers.live.agent.isolation.job_environment import STATE, TASK
from presage.schedulers.live.agent.lease import boot_id
from presage.schedulers.live.agent.tasks.processes import (
    Stat,
    environment,
    listed,
    pids,
    real_uid,
    send,
    stat,
)
from presage.schedulers.live.agent.tasks.task_folder import TASKS, TaskFolder
from presage.schedulers.live.agent.tasks.task_process import remove_leftovers

_KILLING_S = 5.0
_REMOVING_S = 1.0


def sweep(state: Path) -> frozenset[int]:
    """Kill what belongs to tasks of a state folder without a shim, and remove their groups.

    A task's processes are known by their control groups, which they cannot leave. Where there are
    none they are known by the environment that they were started with, or by the session of the
    job's first process, if they are also of the task's account. Of those that have changed both
    only their shim knows which task they belong to; they cannot kill it unless they are of its own
    account.

    Returns
    -------
    frozenset of int
        Processes that were killed. Call again while there are any: each pass may leave those that
        the kernel does not let go yet.
    """
    state = state.resolve()
    killed: set[int] = set()
    until_s = time.monotonic() + _KILLING_S
    while (found := _orphans(state)) and time.monotonic() < until_s:
        stopped = {pid: known for pid, known in found.items() if pid not in killed}
        send(signal.SIGSTOP, stopped)  # nothing escapes by a fork
        send(signal.SIGKILL, found)
        killed |= found.keys()
        time.sleep(0.01)
    for name in names_of_groups(state):
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
        for task in {_named(pid, state), sessions.get(known.session, "")} - {""}:
            if _may_be_of(pid, state, task):
                found.setdefault(task, {})[pid] = known
    for name in names_of_groups(state):
        found.setdefault(name, {}).update(listed(find_isolation(state, name).pids))
    # Asked only now: whoever has children in a task holds it before, and until they are gone.
    return {
        pid: known
        for name, members in found.items()
        if not _is_held(state, name)
        for pid, known in members.items()
        if known.state not in "ZX"
    }


def _named(pid: int, state: Path) -> str:
    """The task that a process' environment names; "" if none. Any process can name any."""
    said = environment(pid)
    task = os.fsdecode(said.get(TASK.encode(), b""))
    ours = said.get(STATE.encode()) == os.fsencode(state)
    return task if ours and "/" not in task and not task.startswith(".") else ""


def _sessions(state: Path) -> dict[int, str]:
    """Sessions of jobs that have no shim, by the number of their first process."""
    found = {}
    for path in (state / TASKS).glob("[!.]*"):
        folder = TaskFolder(path)
        said = None if folder.over else folder.shim_state()
        if said is None or said.job_pid is None or said.boot_id != boot_id():
            continue
        leader = stat(said.job_pid)  # no other process has its number while its session exists
        if leader is None or leader.start == said.job_start:
            found[said.job_pid] = path.name
    return found


def _may_be_of(pid: int, state: Path, task: str) -> bool:
    """Return whether a process has a task's account, which processes of others cannot take."""
    try:
        account = TaskFolder(state / TASKS / task).spec().account
    except InvalidJobError:  # its folder is gone: what the process says is all there is
        return True
    return real_uid(pid) == (os.geteuid() if account is None else account.uid)


def _is_held(state: Path, name: str) -> bool:
    return TaskFolder(state / TASKS / name).holder() is not None
