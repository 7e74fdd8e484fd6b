"""The parent of a task's processes: it does what is wanted of the task, and says how it ended.

Started by :func:`presage.schedulers.agent.task_process.launch`; it outlives the agent. All that it
knows of the outside is in files: what is wanted, until when the node's tasks may run, what the job
reports. It looks at them twice a second and when it gets SIGHUP. It imports nothing beyond Python's
own library, takes 0.1 s to start and some 13 MB.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from presage.features.errors import InvalidJobError
from presage.schedulers.agent.duty_cycle import DutyCycle
from presage.schedulers.agent.isolation import Isolation, make_isolation
from presage.schedulers.agent.job_environment import cpu_count, job_environment, mps_percent
from presage.schedulers.agent.job_process import (
    JobProcess,
    NoStartError,
    adopt_orphans,
    spent_by_reaped,
    start_job,
)
from presage.schedulers.agent.lease import boot_id, boottime_s
from presage.schedulers.agent.log_file import keep_small
from presage.schedulers.agent.orders import Orders
from presage.schedulers.agent.processes import stat
from presage.schedulers.agent.task import (
    ENDED,
    LEASE_OVER,
    NO_START,
    OUT_OF_MEMORY,
    TERMINATED,
    WHOLE,
    ShimState,
    TaskExit,
    TaskSpec,
)
from presage.schedulers.agent.task_folder import TaskFolder

_LOOK_S = 0.5
_ENDING_LOOK_S = 0.05
_TERMINATE_S = 1.0  # from SIGTERM to SIGKILL
_LONGEST_RETRY_S = 5.0
_HEARD = (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM)


class _Ending(NamedTuple):
    """How far the end of a task has come."""

    why: str
    asked_s: float  # for a checkpoint
    saved: int  # in the checkpoint before
    step: str  # what was last done: "checkpoint", "terminate" or "kill"
    until_s: float  # when more is done


class Shim:
    """Of one task, whose folder this process holds."""

    def __init__(self, folder: TaskFolder, spec: TaskSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._orders = Orders(folder, boottime_s())
        self._isolation = Isolation([])
        self._state = ShimState(os.getpid(), None, None, boottime_s(), boot_id(), "", "")
        self._state_said = False
        self._terminated = False
        self._ending: _Ending | None = None
        self._mps_percent: int | None = None
        self._limited_to: int | None = None  # thousandths
        self._duty = DutyCycle(WHOLE, 0.0)
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
        self._mps_percent = mps_percent(self._spec, self._orders.wanted.compute_milli)
        most_milli = WHOLE if self._mps_percent is None else 10 * self._mps_percent
        self._state = replace(self._state, most_compute_milli=most_milli)
        environment = job_environment(self._spec, self._folder, self._mps_percent)
        try:
            job = start_job(
                self._spec, environment, self._folder.log, self._isolation, self._is_born
            )
        except NoStartError as error:
            return _exit(None, f"{NO_START}: {error}")
        while job.status is None:
            self._do(job)
            self._listen()
            job.reap()
        status = job.status
        job.kill_all()
        return self._exit_of(status)

    def _wait_to_start(self) -> str:
        """Until the folder says durably that the job is started; or why it is not to be."""
        while True:
            self._orders.look()
            if (reason := self._reason_to_end(boottime_s()))[0]:
                return reason[0]
            self._state = replace(self._state, started_boottime_s=boottime_s())
            if self._orders.lease_until_s is not None and self._say_state():
                return ""
            self._look_s = boottime_s() + _ENDING_LOOK_S
            self._listen()

    def _is_born(self, pid: int) -> None:
        """Limit the job's first process before it does anything."""
        found = stat(pid)
        memory = "cuda" if self._spec.cuda is not None else "nothing"
        if self._spec.cuda is None and self._spec.memory_bytes:
            memory = self._isolation.limit_memory(self._spec.memory_bytes) or memory
        self._limit_compute()
        self._state = replace(
            self._state, job_pid=pid, job_start=found and found.start, memory=memory
        )
        self._say_state()

    def _do(self, job: JobProcess) -> None:
        """Make the job what it is to be now."""
        now_s = boottime_s()
        if now_s >= self._look_s:
            self._orders.look()
            self._limit_compute()
            self._look_around()
            if self._orders.wanted.paused and self._ending is None:
                job.hold_still()  # again and again: others can continue what was stopped
            self._look_s = now_s + (_LOOK_S if self._ending is None else _ENDING_LOOK_S)
        if self._ending is None:
            why, checkpoint = self._reason_to_end(now_s)
            if why:
                self._begin_end(job, why, checkpoint, now_s)
        else:
            self._go_on_ending(job, self._ending, now_s)
        if self._ending is None and self._orders.wanted.paused:
            return
        if job.held_still:
            job.let_all_go()
        ending = self._ending is not None and self._ending.step != "checkpoint"
        job.run(ending or self._duty.runs(now_s))

    def _listen(self) -> None:
        """Wait for a signal, or until there is something to do without one."""
        now_s = boottime_s()
        until_s = min(self._look_s, self._orders.next_s() if self._ending is None else now_s + 1)
        if not self._orders.wanted.paused or self._ending is not None:
            until_s = min(until_s, self._duty.next_s(now_s))
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

    def _begin_end(self, job: JobProcess, why: str, checkpoint: bool, now_s: float) -> None:
        report = self._folder.progress()
        saved = 0 if report is None else report.saved
        self._ending = _Ending(why, now_s, saved, "checkpoint", now_s + self._spec.grace_s)
        self._look_s = 0.0
        if checkpoint:
            job.ask_for_checkpoint()
        else:
            self._terminate(job, self._ending, now_s)

    def _go_on_ending(self, job: JobProcess, ending: _Ending, now_s: float) -> None:
        if ending.step == "checkpoint":
            end = self._orders.wanted.end
            no_more = end is not None and not end.checkpoint
            if no_more or now_s >= ending.until_s or self._has_saved(ending):
                self._terminate(job, ending, now_s)
        elif now_s >= ending.until_s:
            job.kill()
            self._ending = ending._replace(step="kill")

    def _terminate(self, job: JobProcess, ending: _Ending, now_s: float) -> None:
        job.terminate()
        self._ending = ending._replace(step="terminate", until_s=now_s + _TERMINATE_S)

    def _has_saved(self, ending: _Ending) -> bool:
        report = self._folder.progress()
        return report is not None and (
            report.saved > ending.saved or report.saved_at_s > ending.asked_s
        )

    def _limit_compute(self) -> None:
        """Hold the job to its share: by its group or MPS where there is one, else of the time."""
        wanted_milli = self._orders.wanted.compute_milli
        if wanted_milli == self._limited_to:
            return
        self._limited_to = wanted_milli
        how, of_time = self._limit_gpu(wanted_milli)
        if self._spec.cuda is None:
            cpus = cpu_count(self._spec) * wanted_milli / WHOLE
            how = self._isolation.limit_cpus(None if wanted_milli == WHOLE else cpus)
            of_time = WHOLE if how else wanted_milli
        self._duty = DutyCycle(of_time, boottime_s())
        self._state = replace(self._state, compute=how or "duty cycle")
        self._state_said = False

    def _limit_gpu(self, wanted_milli: int) -> tuple[str, int]:
        """What limits a job on a GPU, and thousandths of the time that it runs."""
        if self._mps_percent is None:
            return "", wanted_milli
        # MPS has whole hundredths, and never changes them: what is below is a matter of time.
        most_milli = self._state.most_compute_milli
        below = wanted_milli <= most_milli - 10
        return "mps", wanted_milli * WHOLE // most_milli if below else WHOLE

    def _look_around(self) -> None:
        """What is done twice a second beside the job's own affairs."""
        self._peak_bytes = max(self._peak_bytes, self._isolation.memory_bytes() or 0)
        keep_small(self._folder.log, self._spec.log_bytes)
        if not self._state_said:
            self._say_state()

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
