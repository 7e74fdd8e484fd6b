"""Processes of a job, as children of its shim: started, stopped, continued, killed."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from presage.schedulers.live.agent.isolation.account import become
from presage.schedulers.live.agent.isolation.control_groups import Isolation
from presage.schedulers.live.agent.isolation.job_limits import set_limits
from presage.schedulers.live.agent.tasks.processes import Stat, descendants, send, stat_listed
from presage.schedulers.live.agent.tasks.task import TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.system.files.regular_file import open_regular

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 36, 38  # of <linux/prctl.h>
_UMASK = 0o077  # files of a job are private to its account, unless the job changes the mask
_LIBC = ctypes.CDLL(None, use_errno=True)


class JobStartError(Exception):
    """The job's program could not be started; the message says why."""


class JobProcess:
    """First process of a job and all its descendants.

    Attributes
    ----------
    pid : int
        Id of the first process, and of the session and process group that it leads.
    status : int or None
        Exit of the first process: a code, or the negative number of a signal.
    is_stopped : bool
        Whether all processes are stopped, not only the process group.
    """

    def __init__(self, pid: int, isolation: Isolation) -> None:
        self.pid = pid
        self.status: int | None = None
        self.is_stopped = False
        self._isolation = isolation
        self._is_group_stopped = False

    def set_running(self, running: bool) -> None:
        """Stop or continue the process group of the first process, if that is a change."""
        if running == self._is_group_stopped:
            self._is_group_stopped = not running
            self._signal_group(signal.SIGCONT if running else signal.SIGSTOP)

    def stop_all(self) -> None:
        """Stop every process of the job, also those that have left its group.

        A repeated call signals only the group: no new process appears while all are stopped.
        """
        self._signal_group(signal.SIGSTOP)
        if not self.is_stopped:
            self._stop_each()
        self._is_group_stopped = self.is_stopped = True

    def continue_all(self) -> None:
        """Continue every process of the job."""
        self._is_group_stopped = self.is_stopped = False
        self._signal_group(signal.SIGCONT)
        send(signal.SIGCONT, descendants(os.getpid()))

    def request_checkpoint(self) -> None:
        """Signal the first process only: its helper processes rarely handle the signal."""
        if self.status is None:
            with suppress(ProcessLookupError):  # not reaped yet, so its id cannot be reused
                os.kill(self.pid, signal.SIGUSR1)

    def terminate(self) -> None:
        """Ask the process group to end, and continue it: a stopped process handles no signal."""
        self._signal_group(signal.SIGTERM)
        self.continue_all()

    def kill(self) -> None:
        """Kill all processes that are found; stop them first, so that none escapes by a fork."""
        self._isolation.kill()
        self._signal_group(signal.SIGKILL)
        send(signal.SIGKILL, self._stop_each())

    def kill_all(self) -> None:
        """Kill until no process of the job is left, also those that the kernel ends late."""
        wait_s = 0.001
        while self.reap() or self._isolation.pids():
            self.kill()
            time.sleep(wait_s)
            wait_s = min(0.5, 1.5 * wait_s)

    def reap(self) -> bool:
        """Reap the processes that have ended; return whether any process of the job is left.

        This process is the parent of all orphans among its descendants, so the job has processes
        as long as this process has a child.
        """
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return False
        return True

    def _stop_each(self) -> dict[int, Stat]:
        """Stop processes until a scan finds no new ones; return all of them."""
        stopped: dict[int, Stat] = {}
        while more := {pid: found for pid, found in self._scan().items() if pid not in stopped}:
            send(signal.SIGSTOP, more)
            stopped |= more
        return stopped

    def _scan(self) -> dict[int, Stat]:
        return {**stat_listed(self._isolation.pids), **descendants(os.getpid())}

    def _signal_group(self, signal_: signal.Signals) -> None:
        if self.status is None:  # afterwards its id may be reused
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal_)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent has ended.

    Raises
    ------
    OSError
        The kernel refuses.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)


def start_job(
    spec: TaskSpec,
    environment: Mapping[str, str],
    folder: TaskFolder,
    isolation: Isolation,
    on_fork: Callable[[int], None],
) -> JobProcess:
    """Start the job in its own session; it dies with this process.

    Parameters
    ----------
    on_fork : callable
        Called with the id of the process before that runs anything of the job.

    Raises
    ------
    JobStartError
        The program, its folder or its processors do not exist; nothing runs.
    """
    shim = os.getpid()
    go_read, go_write = os.pipe()
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        _become(spec, environment, folder, shim, go_read, error_write)
    os.close(go_read)
    os.close(error_write)
    job = JobProcess(pid, isolation)
    isolation.enter(pid)
    on_fork(pid)
    with suppress(BrokenPipeError):
        os.write(go_write, b"!")
    os.close(go_write)
    with os.fdopen(error_read, "rb") as file:
        message = file.read()  # ends when the program replaces the child
    if message:
        job.kill_all()
        raise JobStartError(message.decode(errors="replace"))
    return job


def _become(
    spec: TaskSpec,
    environment: Mapping[str, str],
    folder: TaskFolder,
    shim: int,
    go_read: int,
    error_write: int,
) -> NoReturn:
    """Turn the child process into the job, or write why it cannot."""
    try:
        os.setsid()
        _die_with(shim)
        if not os.read(go_read, 1):
            os._exit(1)
        _prepare(spec, folder.log)
        _drop_privileges(spec)
        _die_with(shim)  # a change of user resets it
        _check_folders(spec, folder)
        _change_folder(spec.folder)
        _exec(spec, environment)
    except BaseException as error:  # of any kind: no caller could handle it
        text = str(error)
        if isinstance(error, OSError) and error.filename is None:
            text = f"{error.strerror}: {spec.command[0]!r}"
        os.write(error_write, (text or repr(error)).encode(errors="replace")[:4096])
    os._exit(127)


def _exec(spec: TaskSpec, environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(spec.command[0], spec.command, dict(environment))  # noqa: S606 the user's command
    except OSError as error:
        raise JobStartError(_no_program(spec, environment, error)) from error


def _no_program(spec: TaskSpec, environment: Mapping[str, str], error: OSError) -> str:
    """Return why a program cannot be run, in terms of the name that the user gave."""
    import shutil  # not at the top: few shims need it

    name, path = spec.command[0], os.pathsep.join(os.get_exec_path(environment))
    found = shutil.which(name, os.F_OK, path)
    if found is None:
        if "/" not in name:
            return f"no program {name!r} on the PATH"
        where = "on this node" if name.startswith("/") else f"in folder {spec.folder}"
        return f"no program {name!r} {where}"
    if isinstance(error, FileNotFoundError):
        return f"program {found!r} names an interpreter in its first line that is not on this node"
    return f"program {found!r}: {error.strerror}"


def _change_folder(folder: str) -> None:
    try:
        os.chdir(folder)
    except FileNotFoundError:
        raise JobStartError(f"folder {folder} does not exist on this node") from None
    except OSError as error:
        raise JobStartError(f"folder {folder}: {error.strerror}") from error


def _prepare(spec: TaskSpec, log: Path) -> None:
    # Python ignores some signals, and the parent of the agent may have ignored others.
    for signal_ in signal.valid_signals():
        if signal.getsignal(signal_) == signal.SIG_IGN:
            signal.signal(signal_, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)
    null = os.open(os.devnull, os.O_RDONLY)
    output = open_regular(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.set_blocking(output, True)
    if spec.account is not None:  # so that the job can open /dev/stdout
        os.fchown(output, spec.account.uid, spec.account.gid)
    for opened, number in ((null, 0), (output, 1), (output, 2)):
        os.dup2(opened, number, inheritable=True)
    set_limits(spec.max_processes, spec.max_open_files)
    os.umask(_UMASK)


def _drop_privileges(spec: TaskSpec) -> None:
    """Become the job's account irreversibly, without a way to gain privileges."""
    if spec.account is not None:
        try:
            become(spec.account)
        except OSError as error:
            raise JobStartError(
                f"the agent cannot run the job as account {spec.account.name!r} "
                f"({error.strerror or error}): it needs CAP_SETUID and CAP_SETGID"
            ) from error
    _prctl(_SET_NO_NEW_PRIVS, 1)


def _die_with(shim: int) -> None:
    """Have the kernel kill this process when its shim dies."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:  # it died before the call
        os._exit(1)


def _check_folders(spec: TaskSpec, folder: TaskFolder) -> None:
    """Raise an error if the job's account cannot write to its folders."""
    if spec.account is None:
        return
    for path in (folder.job_folder, Path(spec.checkpoint)):
        if not os.access(path, os.W_OK | os.X_OK):
            raise JobStartError(
                f"account {spec.account.name!r} cannot write to {path}: all parent folders must be "
                "accessible (chmod o+x); see --state and --checkpoints of the agent"
            )


def children_usage() -> tuple[float, int]:
    """Return the processor seconds of all reaped children and the largest one's peak bytes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
