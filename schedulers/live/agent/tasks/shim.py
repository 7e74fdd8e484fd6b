"""Shim: parent of a task's processes, which applies the desired state and records the exit.

Started by :func:`presage.schedulers.live.agent.tasks.task_process.launch`; it outlives the agent.
Its inputs are files: the desired state, the node's lease and the job's progress. It polls them
twice a second and at SIGHUP. It imports only the standard library, starts in 0.1 s and takes
about 13 MB.
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
from presage.schedulers.live.agent.connection.lease import boot_id, boottime_s
from presage.schedulers.live.agent.isolation.control_groups import Isolation, make_isolation
from presage.schedulers.live.agent.isolation.job_environment import job_environment, mps_percent
from presage.schedulers.live.agent.isolation.share_limit import ShareLimit
from presage.schedulers.live.agent.tasks.job_process import (
    JobProcess,
    JobStartError,
    adopt_orphans,
    children_usage,
    start_job,
)
from presage.schedulers.live.agent.tasks.log_file import limit_log_size
from presage.schedulers.live.agent.tasks.processes import stat
from presage.schedulers.live.agent.tasks.shim_inputs import ShimInputs
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
from presage.schedulers.live.agent.tasks.termination import Termination

_POLL_S = 0.5
_TERMINATION_POLL_S = 0.05
_MAX_RETRY_S = 5.0
_SIGNALS = (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM)


class Shim:
    """Shim of one task, whose folder this process holds."""

    def __init__(self, folder: TaskFolder, spec: TaskSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._inputs = ShimInputs(folder, boottime_s())
        self._isolation = Isolation([])
        self._share = ShareLimit(spec, self._isolation, None)
        self._state = ShimState(os.getpid(), None, None, boottime_s(), boot_id(), "")
        self._is_state_written = False
        self._is_terminated = False
        self._termination: Termination | None = None
        self._peak_bytes = 0
        self._poll_s = 0.0

    def run(self) -> TaskExit:
        """Start the job, and apply the desired state until it has ended."""
        why = self._wait_to_start()
        if why:
            return _exit(None, why)
        if self._spec.use_control_groups:
            self._isolation = make_isolation(self._folder.state, self._folder.name)
        try:
            return self._run_job()
        finally:
            self._isolation.remove()

    def _run_job(self) -> TaskExit:
        percent = mps_percent(self._spec, self._inputs.desired.compute_milli)
        self._share = ShareLimit(self._spec, self._isolation, percent)
        environment = job_environment(self._spec, self._folder, percent)
        spec = self._limited()
        try:
            job = start_job(spec, environment, self._folder, self._isolation, self._on_fork)
        except JobStartError as error:
            return _exit(None, f"{NO_START}: {error}")
        while job.status is None:
            self._reconcile(job)
            self._wait()
            job.reap()
        status = job.status
        job.kill_all()
        return self._make_exit(status)

    def _limited(self) -> TaskSpec:
        """Set the limits that control groups accept; return the spec with the others."""
        spec = self._spec
        if spec.max_host_memory_bytes:
            self._isolation.limit_memory(spec.max_host_memory_bytes)
        if spec.max_processes and self._isolation.limit_processes(spec.max_processes):
            return replace(spec, max_processes=0)
        return spec

    def _wait_to_start(self) -> str:
        """Wait until the start is recorded durably; return why the job is not to start, or ""."""
        while True:
            self._inputs.refresh()
            why, _ = self._reason_to_end(boottime_s())
            if why:
                return why
            self._state = replace(self._state, started_boottime_s=boottime_s())
            if self._inputs.lease_until_s is not None and self._write_state():
                return ""
            self._poll_s = boottime_s() + _TERMINATION_POLL_S
            self._wait()

    def _on_fork(self, pid: int) -> None:
        """Limit the job's first process before it runs anything, and record it."""
        found = stat(pid)
        self._share.set(self._inputs.desired.compute_milli, boottime_s())
        self._state = replace(
            self._state,
            job_pid=pid,
            job_start=found and found.start,
            enforcement=self._share.how,
        )
        self._write_state()

    def _reconcile(self, job: JobProcess) -> None:
        """Bring the job to its desired state."""
        now_s = boottime_s()
        if now_s >= self._poll_s:
            self._poll(now_s)
        self._end_if_due(job, now_s)
        if self._termination is None and self._inputs.desired.paused:
            if now_s >= self._poll_s:
                job.stop_all()  # repeatedly: others can continue stopped processes
        else:
            if job.is_stopped:
                job.continue_all()
            job.set_running(self._termination is not None or self._share.duty.runs(now_s))
        if now_s >= self._poll_s:
            self._poll_s = now_s + (_POLL_S if self._termination is None else _TERMINATION_POLL_S)

    def _poll(self, now_s: float) -> None:
        """Read the inputs and act on them, twice a second and after SIGHUP."""
        self._inputs.refresh()
        # A task that ends gets a full share to save its state: others wait for its devices.
        ends = self._termination is not None
        if self._share.set(
            FULL_DEVICE_MILLI if ends else self._inputs.desired.compute_milli, now_s
        ):
            self._is_state_written &= self._state.enforcement == self._share.how
            self._state = replace(self._state, enforcement=self._share.how)
        self._peak_bytes = max(self._peak_bytes, self._isolation.memory_bytes() or 0)
        limit_log_size(self._folder.log, self._spec.log_bytes)
        if not self._is_state_written:
            self._write_state()

    def _end_if_due(self, job: JobProcess, now_s: float) -> None:
        why, checkpoint = self._reason_to_end(now_s)
        if self._termination is not None:
            self._termination.advance(now_s, checkpoint=checkpoint or why != ENDED)
        elif why:
            # From the end of the lease, and not from when this process noticed it.
            since_s = self._inputs.until_s if why == LEASE_OVER else now_s
            until_s = since_s + self._spec.grace_s
            self._termination = Termination(
                job, self._folder, why, now_s, checkpoint=checkpoint, until_s=until_s
            )
            self._poll_s = 0.0

    def _wait(self) -> None:
        """Wait for a signal, or until the next action is due."""
        now_s = boottime_s()
        is_ending = self._termination is not None
        until_s = min(self._poll_s, now_s + 1 if is_ending else self._inputs.next_s())
        if not self._inputs.desired.paused or is_ending:
            until_s = min(until_s, self._share.duty.next_s(now_s))
        received = signal.sigtimedwait(_SIGNALS, max(0.001, until_s - now_s))
        if received is None:
            return
        if received.si_signo == signal.SIGHUP:
            self._poll_s = 0.0
        self._is_terminated |= received.si_signo == signal.SIGTERM

    def _reason_to_end(self, now_s: float) -> tuple[str, bool]:
        """Return why the task is to end, "" if it is not, and whether with a checkpoint."""
        end = self._inputs.desired.end
        if end is not None:
            return ENDED, end.checkpoint
        if not self._folder.path.is_dir():  # the task was removed
            return ENDED, True
        if self._inputs.is_lease_over(now_s):
            return LEASE_OVER, True
        return (TERMINATED, True) if self._is_terminated else ("", False)

    def _write_state(self) -> bool:
        """Write the state of the shim; return whether it succeeded. A full disk is retried."""
        try:
            self._folder.write_shim_state(self._state)
        except OSError:
            self._is_state_written = False
        else:
            self._is_state_written = True
        return self._is_state_written

    def _make_exit(self, status: int) -> TaskExit:
        why = "" if self._termination is None else self._termination.why
        if not why and status != 0 and self._isolation.out_of_memory_kills():
            why = OUT_OF_MEMORY
        cpu_s, largest_bytes = children_usage()
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


def _write_exit(folder: TaskFolder, task_exit: TaskExit) -> None:
    """Write the exit, retrying while the disk is full, unless the folder is removed."""
    wait_s = 0.1
    while folder.path.is_dir():
        try:
            return folder.write_exit(task_exit)
        except OSError:
            time.sleep(wait_s)
            wait_s = min(_MAX_RETRY_S, 2 * wait_s)
    return None


def _serve(folder: TaskFolder, on_held: Callable[[], None]) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # nohup and others set them to be ignored
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if not folder.path.is_dir() or not folder.hold() or folder.started or folder.over:
        return None
    on_held()
    adopt_orphans()
    try:
        spec = folder.spec()
    except InvalidJobError as error:
        return _write_exit(folder, _exit(None, f"{NO_START}: {error}"))
    return _write_exit(folder, Shim(folder, spec).run())


def main(folder: str) -> None:
    """Hold a task's folder in a detached process; write "held" to the output once it does."""
    if os.fork():
        os._exit(0)
    os.setsid()

    def on_held() -> None:
        with suppress(OSError):  # the agent may have ended
            os.write(1, b"held\n")
        os.dup2(2, 1)

    _serve(TaskFolder(Path(folder)), on_held)
