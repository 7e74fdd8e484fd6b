"""What is left of tasks that nobody answers for: processes, groups, folders."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from presage.schedulers.agent.isolation import find_isolation, names_of_groups
from presage.schedulers.agent.job_environment import STATE, TASK
from presage.schedulers.agent.processes import environment, pids, send, stat
from presage.schedulers.agent.task_folder import TASKS, TaskFolder
from presage.schedulers.agent.task_process import NEW_PREFIX, OLD_PREFIX

_KILLING_S = 5.0
_FOLDER_S = 60.0  # one that is being made is left alone


def sweep(state: Path) -> frozenset[int]:
    """Kill what belongs to tasks of a state folder without a shim, and remove their groups.

    A task's processes are known by their groups and by the environment that they were started
    with; where there are no groups, one that was started with another environment is not found.

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
        send(signal.SIGSTOP, found - killed)  # nothing escapes by a fork
        send(signal.SIGKILL, found)
        killed |= found
        time.sleep(0.01)
    for name in names_of_groups(state):
        if not _is_held(state, name):
            find_isolation(state, name).remove()
    _remove_leftovers(state / TASKS)
    return frozenset(killed)


def _orphans(state: Path) -> set[int]:
    found: dict[str, set[int]] = {}
    for pid in pids():
        said = environment(pid)
        task = said.get(TASK.encode())
        if task and said.get(STATE.encode()) == os.fsencode(state) and pid != os.getpid():
            found.setdefault(os.fsdecode(task), set()).add(pid)
    for name in names_of_groups(state):
        found.setdefault(name, set()).update(find_isolation(state, name).pids())
    # Asked only now: whoever has children in a task holds it before, and until they are gone.
    return {
        pid
        for name, members in found.items()
        if not _is_held(state, name)
        for pid in members
        if (now := stat(pid)) is not None and now.state not in "ZX"
    }


def _is_held(state: Path, name: str) -> bool:
    return TaskFolder(state / TASKS / name).holder() is not None


def _remove_leftovers(tasks: Path) -> None:
    for prefix in (NEW_PREFIX, OLD_PREFIX):
        for path in tasks.glob(f"{prefix}*"):
            if time.time() - path.stat().st_mtime > _FOLDER_S:
                shutil.rmtree(path, ignore_errors=True)
