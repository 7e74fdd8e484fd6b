"""State folder of a node, and jobs that are short programs, for tests."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import presage
from presage.schedulers.live.agent.connection.lease import boottime_s, write_lease
from presage.schedulers.live.agent.isolation.control_groups import make_isolation
from presage.schedulers.live.agent.tasks.leftovers import sweep
from presage.schedulers.live.agent.tasks.processes import environment, pids, stat
from presage.schedulers.live.agent.tasks.task import DesiredState, End, TaskExit, TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.schedulers.live.agent.tasks.task_process import (
    Task,
    TaskState,
    adopt,
    create,
    launch,
    set_desired_state,
    task_state,
)
from tests.support.waiting import wait_until

SOURCE = str(Path(presage.__file__).parent.parent)
COUNTS = """
from presage import progress
run = progress.begin(iterations=10**9)
done = run.first
while True:
    done += 1
    run.step(done)
"""
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
FULL_DEVICE_MILLI = DesiredState()
NEVER_MIND = DesiredState(end=End(checkpoint=False, reason="the test is over"))


class Node:
    """State folder with a lease; :meth:`close` ends all processes of it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.lease(600.0)

    def lease(self, for_s: float) -> None:
        write_lease(self.state, boottime_s() + for_s)

    def make(
        self, code: str, *, job_id: str = "job", wanted: DesiredState = FULL_DEVICE_MILLI, **spec
    ) -> Task:
        said = {
            "attempt": 1,
            "command": (sys.executable, "-c", code),
            "folder": str(self.state),
            "checkpoint": str(self.state / "checkpoints" / "job"),
            "environment": {"PYTHONPATH": SOURCE},
            "grace_s": 20.0,
        }
        return create(self.state, TaskSpec(job_id, **{**said, **spec}), wanted)

    def start(self, code: str, **spec) -> TaskFolder:
        task = self.make(code, **spec)
        assert launch(task)
        return task.folder

    def close(self) -> None:
        for task in adopt(self.state).tasks:
            set_desired_state(task.folder, NEVER_MIND)
        for task in adopt(self.state).tasks:
            wait_until(lambda folder=task.folder: task_state(folder) != TaskState.RUNNING)
        sweep(self.state)
        assert self.processes() == []

    def processes(self) -> list[int]:
        """Return the running processes of this state folder's tasks, without zombies."""
        return [
            pid
            for pid in pids()
            if environment(pid).get(b"PRESAGE_STATE") == os.fsencode(self.state)
            and (found := stat(pid)) is not None
            and found.state not in "ZX"
        ]


def ended(folder: TaskFolder) -> TaskExit:
    """Wait until a task has ended; return its exit."""
    wait_until(lambda: task_state(folder) in (TaskState.ENDED, TaskState.LOST))
    exit_ = folder.exit()
    assert exit_ is not None, (folder.path / "shim.log").read_text()
    return exit_


def job_pid(folder: TaskFolder) -> int:
    """Wait until a task has a main process; return its id."""
    said = wait_until(lambda: (state := folder.shim_state()) and state.job_pid and state)
    return int(said.job_pid)


def says(folder: TaskFolder, word: str) -> None:
    """Wait until the log of a task contains a word."""
    wait_until(lambda: word in folder.log.read_text())


def counts(folder: TaskFolder) -> None:
    """Wait until a job reports a step."""
    wait_until(lambda: (report := folder.progress()) and report.done > 0)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def letter(pid: int) -> str:
    """Return the state of a process as the letter that ps shows; "" if it has ended."""
    found = stat(pid)
    return "" if found is None else found.state


def done_by(folder: TaskFolder) -> int:
    """Return the completed iterations that a job reports."""
    report = folder.progress()
    assert report is not None
    return report.done


def saved_by(folder: TaskFolder) -> int:
    """Return the iterations in the last checkpoint that a job reports."""
    report = folder.progress()
    assert report is not None
    return report.saved


def shim_pid(folder: TaskFolder) -> int:
    """Return the id of the process that holds a task folder."""
    holder = folder.holder()
    assert holder is not None
    return holder


def has_groups(state: Path) -> bool:
    """Return whether a control group for processors can be created on this machine."""
    isolation = make_isolation(state, "probe")
    try:
        return bool(isolation.limit_cpus(0.5))
    finally:
        isolation.remove()
