"""The parent of a task's processes: it does what is wanted of the task, and says how it ended.

Started by :func:`presage.schedulers.live.agent.tasks.task_process.launch`; it outlives the agent.
All that it knows of the outside is in files: what is wanted, until when the node's tasks may run,
what the job reports. It looks at them twice a second and when it gets SIGHUP. It imports nothing
beyond Python's own library, takes 0.1 s to start and some 13 MB.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.isolation.control_groups import Isolation, make_isolation
from presage.schedulers.live.agent.isolation.job_environment import job_environment, mps_percent
from presage.schedulers.live.agent.isolation.share_limit import ShareLimit
from presage.schedulers.live.agent.lease import boot_id, boottime_s
from presage.schedulers.live.agent.tasks.ending import Ending
from presage.schedulers.live.agent.tasks.job_process import (
    JobProcess,
    NoStartError,
    adopt_orphans,
    spent_by_reaped,
    start_job,
)
from presage.schedulers.live.agent.tasks.log_file import keep_small
from presage.schedulers.live.agent.tasks.processes import stat
from presage.schedulers.live.agent.tasks.shim_orders import Orders
from presage.schedulers.live.agent.tasks.task import (
    ENDED,
    FULL_DEVICE_MILLI,
    LEASE_OVER,
    NO_START,
    OUT_OF_MEMORY,
    TERMINATED,
    ShimState,
    TaskExit,
    TaskSpec,
)
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder

_LOOK_S = 0.5
_ENDING_LOOK_S = 0.05
_LONGEST_RETRY_S = 5.0
_HEARD = (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM)


class Shim:
    """Of one task, whose folder this process holds."""

    def __init__(self, folder: TaskFolder, spec: TaskSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._orders = Orders(folder, boottime_s())
        self._isolation = Isolation([])
        self._share = ShareLimit(spec, self._isolation, None)
        self._state = ShimState(os.getpid(), None, None, boottime_s(), boot_id(), "")
        self._state_said = False
        self._terminated = False
        self._ending: Ending | None = None
        self._peak_bytes = 0
        self._look_s = 0.0

    def run(self) -> TaskExit:
        """Start the job, and do what is wanted of it until it has ended."""
        why = self._wait_to_start()
        if why:
            return _exit(None, why)
        if self._spec.groups:
            self._isolation = make_isolation(self._folder.state, self._folder.name)
        try:
            return self._run_job()
        finally:
            self._isolation.remove()

    def _run_job(self) -> TaskExit:
        percent = mps_percent(self._spec, self._orders.wanted.compute_milli)
        self._share = ShareLimit(self._spec, self._isolation, percent)
        environment = job_environment(self._spec, self._folder, percent)
        spec = self._limited()
        try:
            job = start_job(spec, environment, self._folder, self._isolation, self._is_born)
        except NoStartError as error:
            return _exit(None, f"{NO_START}: {error}")
        while job.status is None:
            self._do(job)
            self._listen()
            job.reap()
        status = job.status
        job.kill_all()
        return self._exit_of(status)

    def _limited(self) -> TaskSpec:
        """Set the limits that the task's groups take; the spec with those that are left."""
        spec = self._spec
        if spec.max_host_memory_bytes:
            self._isolation.limit_memory(spec.max_host_memory_bytes)
        if spec.max_processes and self._isolation.limit_processes(spec.max_processes):
            return replace(spec, max_processes=0)
        return spec

    def _wait_to_start(self) -> str:
        """Until the folder says durably that the job is started; or why it is not to be."""
        while True:
            self._orders.look()
            why, _ = self._reason_to_end(boottime_s())
            if why:
                return why
            self._state = replace(self._state, started_boottime_s=boottime_s())
            if self._orders.lease_until_s is not None and self._say_state():
                return ""
            self._look_s = boottime_s() + _ENDING_LOOK_S
            self._listen()

    def _is_born(self, pid: int) -> None:
        """Limit the job's first process before it does anything."""
        found = stat(pid)
        self._share.set(self._orders.wanted.compute_milli, boottime_s())
        self._state = replace(
            self._state,
            job_pid=pid,
            job_start=found and found.start,
            compute=self._share.how,
        )
        self._say_state()

    def _do(self, job: JobProcess) -> None:
        """Make the job what it is to be now."""
        now_s = boottime_s()
        if now_s >= self._look_s:
            self._look(now_s)
        self._end_if_due(job, now_s)
        if self._ending is None and self._orders.wanted.paused:
            if now_s >= self._look_s:
                job.hold_still()  # again and again: others can continue what was stopped
        else:
            if job.held_still:
                job.let_all_go()
            job.run(self._ending is not None or self._share.duty.runs(now_s))
        if now_s >= self._look_s:
            self._look_s = now_s + (_LOOK_S if self._ending is None else _ENDING_LOOK_S)

    def _look(self, now_s: float) -> None:
        """What is done twice a second, and when somebody says that something has changed."""
        self._orders.look()
        # Whoever is to save and end does so at once: others wait for what it has.
        ends = self._ending is not None
        if self._share.set(FULL_DEVICE_MILLI if ends else self._orders.wanted.compute_milli, now_s):
            self._state_said &= self._state.compute == self._share.how
            self._state = replace(self._state, compute=self._share.how)
        self._peak_bytes = max(self._peak_bytes, self._isolation.memory_bytes() or 0)
        keep_small(self._folder.log, self._spec.log_bytes)
        if not self._state_said:
            self._say_state()

    def _end_if_due(self, job: JobProcess, now_s: float) -> None:
        why, checkpoint = self._reason_to_end(now_s)
        if self._ending is not None:
            self._ending.go_on(now_s, checkpoint=checkpoint or why != ENDED)
        elif why:
            # From the lease's end on, and not from when this process came to see it.
            since_s = self._orders.until_s if why == LEASE_OVER else now_s
            until_s = since_s + self._spec.grace_s
            self._ending = Ending(
                job, self._folder, why, now_s, checkpoint=checkpoint, until_s=until_s
            )
            self._look_s = 0.0

    def _listen(self) -> None:
        """Wait for a signal, or until there is something to do without one."""
        now_s = boottime_s()
        until_s = min(self._look_s, self._orders.next_s() if self._ending is None else now_s + 1)
        if not self._orders.wanted.paused or self._ending is not None:
            until_s = min(until_s, self._share.duty.next_s(now_s))
        heard = signal.sigtimedwait(_HEARD, max(0.001, until_s - now_s))
        if heard is None:
            return
        if heard.si_signo == signal.SIGHUP:
            self._look_s = 0.0
        self._terminated |= heard.si_signo == signal.SIGTERM

    def _reason_to_end(self, now_s: float) -> tuple[str, bool]:
        """Why the task is to end, "" if it is not, and whether with a checkpoint."""
        end = self._orders.wanted.end
        if end is not None:
            return ENDED, end.checkpoint
        if not self._folder.path.is_dir():  # nobody can want anything of it any more
            return ENDED, True
        if self._orders.lease_over(now_s):
            return LEASE_OVER, True
        return (TERMINATED, True) if self._terminated else ("", False)

    def _say_state(self) -> bool:
        """Whether the folder has it now; on a full disk it is tried again."""
        try:
            self._folder.write_shim_state(self._state)
        except OSError:
            self._state_said = False
        else:
            self._state_said = True
        return self._state_said

    def _exit_of(self, status: int) -> TaskExit:
        why = "" if self._ending is None else self._ending.why
        if not why and status != 0 and self._isolation.out_of_memory_kills():
            why = OUT_OF_MEMORY
        cpu_s, largest_bytes = spent_by_reaped()
        measured_s = self._isolation.cpu_s()
        return replace(
            _exit(status, why),
            cpu_s=cpu_s if measured_s is None else measured_s,
            peak_memory_bytes=max(self._peak_bytes, largest_bytes),
        )


def _exit(status: int | None, why: str) -> TaskExit:
    code = status if status is not None and status >= 0 else None
    number = -status if status is not None and status < 0 else None
    return TaskExit(code, number, why, time.time(), boottime_s(), 0.0, 0)


def _until_written(folder: TaskFolder, exit_: TaskExit) -> None:
    """However long the disk is full; unless the folder is gone, and with it whoever wants it."""
    wait_s = 0.1
    while folder.path.is_dir():
        try:
            return folder.write_exit(exit_)
        except OSError:
            time.sleep(wait_s)
            wait_s = min(_LONGEST_RETRY_S, 2 * wait_s)
    return None


def _serve(folder: TaskFolder, held: Callable[[], None]) -> None:
    for heard in _HEARD:
        signal.signal(heard, signal.SIG_DFL)  # nohup and others leave them ignored
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    if not folder.path.is_dir() or not folder.hold() or folder.started or folder.over:
        return None
    held()
    adopt_orphans()
    try:
        spec = folder.spec()
    except InvalidJobError as error:
        return _until_written(folder, _exit(None, f"{NO_START}: {error}"))
    return _until_written(folder, Shim(folder, spec).run())


def main(folder: str) -> None:
    """Hold a task's folder in a process that nobody waits for; say on the output when it does."""
    if os.fork():
        os._exit(0)
    os.setsid()

    def held() -> None:
        with suppress(OSError):  # the agent may be gone already
            os.write(1, b"held\n")
        os.dup2(2, 1)

    _serve(TaskFolder(Path(folder)), held)
