"""The job's processes, as their shim has them: born, stopped, continued, killed."""

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
from presage.schedulers.live.agent.tasks.processes import Stat, descendants, listed, send
from presage.schedulers.live.agent.tasks.task import TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder
from presage.system.regular_file import open_regular

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 36, 38  # of <linux/prctl.h>
_UMASK = 0o077  # what a job makes is its account's alone, until the job says otherwise
_LIBC = ctypes.CDLL(None, use_errno=True)


class NoStartError(Exception):
    """The job's program could not be started; says why."""


class JobProcess:
    """The job's first process and all that descends from it, as children of this process.

    Attributes
    ----------
    pid : int
        Of the first process; it leads a session and a group of that number.
    status : int or None
        With which that process ended: a code, or the negative of a signal.
    held_still : bool
        Whether all of it was stopped, not only that group.
    """

    def __init__(self, pid: int, isolation: Isolation) -> None:
        self.pid = pid
        self.status: int | None = None
        self.held_still = False
        self._isolation = isolation
        self._stopped = False

    def run(self, wanted: bool) -> None:
        """Stop the first process' group, or let it go on; said only when that changes."""
        if wanted == self._stopped:
            self._stopped = not wanted
            self._signal_group(signal.SIGCONT if wanted else signal.SIGSTOP)

    def hold_still(self) -> None:
        """Stop every process of the job, also those that have left its group.

        Said again, the group alone: of others none is born while all are stopped.
        """
        self._signal_group(signal.SIGSTOP)
        if not self.held_still:
            self._stop_each()
        self._stopped = self.held_still = True

    def let_all_go(self) -> None:
        """Let every process of the job go on."""
        self._stopped = self.held_still = False
        self._signal_group(signal.SIGCONT)
        send(signal.SIGCONT, descendants(os.getpid()))

    def ask_for_checkpoint(self) -> None:
        """Only the first process is asked: its helpers seldom know what the signal means."""
        if self.status is None:
            with suppress(ProcessLookupError):  # it is not reaped: no other has its number
                os.kill(self.pid, signal.SIGUSR1)

    def terminate(self) -> None:
        """Ask all of the group to end; a stopped process would not hear it."""
        self._signal_group(signal.SIGTERM)
        self.let_all_go()

    def kill(self) -> None:
        """Kill whatever is found, stopped first so that nothing escapes by a fork."""
        self._isolation.kill()
        self._signal_group(signal.SIGKILL)
        send(signal.SIGKILL, self._stop_each())

    def kill_all(self) -> None:
        """Until nothing of the job is left; a process that the kernel keeps is waited for."""
        wait_s = 0.001
        while self.reap() or self._isolation.pids():
            self.kill()
            time.sleep(wait_s)
            wait_s = min(0.5, 1.5 * wait_s)

    def reap(self) -> bool:
        """Take in what has ended; whether anything of the job is left.

        As this process is the parent of all orphans among its descendants, it has some as long as
        it has a child.
        """
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return False
        return True

    def _stop_each(self) -> dict[int, Stat]:
        """Until a look finds none that was not stopped: one that forks may just have."""
        seen: dict[int, Stat] = {}
        while more := {pid: found for pid, found in self._each().items() if pid not in seen}:
            send(signal.SIGSTOP, more)
            seen |= more
        return seen

    def _each(self) -> dict[int, Stat]:
        return {**listed(self._isolation.pids), **descendants(os.getpid())}

    def _signal_group(self, signal_: signal.Signals) -> None:
        if self.status is None:  # afterwards its number may be somebody else's
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
    born: Callable[[int], None],
) -> JobProcess:
    """Start the job in a session of its own; it dies with this process.

    Parameters
    ----------
    born : callable
        Is told the process' number before it does anything of the job.

    Raises
    ------
    NoStartError
        The program, its folder or its processors are not there; nothing runs.
    """
    shim = os.getpid()
    may_go, let_go = os.pipe()
    complaint, complain = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(let_go)
        _become(spec, environment, folder, shim, may_go, complain)
    os.close(may_go)
    os.close(complain)
    job = JobProcess(pid, isolation)
    isolation.enter(pid)
    born(pid)
    with suppress(BrokenPipeError):
        os.write(let_go, b"!")
    os.close(let_go)
    with os.fdopen(complaint, "rb") as file:
        said = file.read()  # to the end, which is when the program takes over
    if said:
        job.kill_all()
        raise NoStartError(said.decode(errors="replace"))
    return job


def _become(
    spec: TaskSpec,
    environment: Mapping[str, str],
    folder: TaskFolder,
    shim: int,
    may_go: int,
    complain: int,
) -> NoReturn:
    """In the child: turn into the job, or say why not."""
    try:
        os.setsid()
        _die_with(shim)
        if not os.read(may_go, 1):
            os._exit(1)
        _prepare(spec, folder.log)
        _drop_privileges(spec)
        _die_with(shim)  # a change of user takes that back
        _check_folders(spec, folder)
        _enter(spec.folder)
        _turn_into(spec, environment)
    except BaseException as error:  # whatever it is: there is nobody above to tell
        text = str(error)
        if isinstance(error, OSError) and error.filename is None:
            text = f"{error.strerror}: {spec.command[0]!r}"
        os.write(complain, (text or repr(error)).encode(errors="replace")[:4096])
    os._exit(127)


def _turn_into(spec: TaskSpec, environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(spec.command[0], spec.command, dict(environment))  # noqa: S606 what is asked for
    except OSError as error:
        raise NoStartError(_no_program(spec, environment, error)) from error


def _no_program(spec: TaskSpec, environment: Mapping[str, str], error: OSError) -> str:
    """Why a program cannot be run, in the words of whoever wrote its name."""
    import shutil  # and what it imports: few shims need it

    name, path = spec.command[0], os.pathsep.join(os.get_exec_path(environment))
    found = shutil.which(name, os.F_OK, path)
    if found is None:
        if "/" not in name:
            return f"no program {name!r} on the PATH"
        within = "on this node" if name.startswith("/") else f"in folder {spec.folder}"
        return f"no program {name!r} {within}"
    if isinstance(error, FileNotFoundError):
        return f"program {found!r} begins with the name of an interpreter that is not on this node"
    return f"program {found!r}: {error.strerror}"


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except FileNotFoundError:
        raise NoStartError(f"folder {folder} is not on this node") from None
    except OSError as error:
        raise NoStartError(f"folder {folder}: {error.strerror}") from error


def _prepare(spec: TaskSpec, log: Path) -> None:
    # Python ignores some, and whoever started the agent perhaps others.
    for signal_ in signal.valid_signals():
        if signal.getsignal(signal_) == signal.SIG_IGN:
            signal.signal(signal_, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = open_regular(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.set_blocking(written, True)
    if spec.account is not None:  # so that the job can open /dev/stdout; its folder stays ours
        os.fchown(written, spec.account.uid, spec.account.gid)
    for opened, number in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(opened, number, inheritable=True)
    set_limits(spec.max_processes, spec.max_open_files)
    os.umask(_UMASK)


def _drop_privileges(spec: TaskSpec) -> None:
    """Become the job's account for good; no program that it runs gives it more than that has."""
    if spec.account is not None:
        try:
            become(spec.account)
        except OSError as error:
            raise NoStartError(
                f"the agent cannot run it as account {spec.account.name!r} "
                f"({error.strerror or error}): it needs CAP_SETUID and CAP_SETGID"
            ) from error
    _prctl(_SET_NO_NEW_PRIVS, 1)


def _die_with(shim: int) -> None:
    """Have the kernel kill this process when its shim dies."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != shim:  # it died before that was asked for
        os._exit(1)


def _check_folders(spec: TaskSpec, folder: TaskFolder) -> None:
    """Whether the job's account can reach what it is to write to."""
    if spec.account is None:
        return
    for path in (folder.job_folder, Path(spec.checkpoint)):
        if not os.access(path, os.W_OK | os.X_OK):
            raise NoStartError(
                f"account {spec.account.name!r} cannot write to {path}: all folders above it must "
                "let others in (chmod o+x); see --state and --checkpoints of the agent"
            )


def spent_by_reaped() -> tuple[float, int]:
    """Processor seconds of all children that have ended, and the largest one's memory in bytes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
