"""A node's tasks as its agent has them: made, launched, found again, told what is wanted.

All of it is in files, so an agent can be killed and started again at any moment.
"""

from __future__ import annotations

import enum
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import presage
from presage.errors import InvalidJobError, TaskFolderError
from presage.schedulers.live.agent.isolation.job_environment import STATE, TASK
from presage.schedulers.live.agent.isolation.safe_folders import make_own, remove_tree
from presage.schedulers.live.agent.tasks.file_names import task_name
from presage.schedulers.live.agent.tasks.json_file import write_json
from presage.schedulers.live.agent.tasks.log_file import write_first
from presage.schedulers.live.agent.tasks.task import TaskSpec, Wanted
from presage.schedulers.live.agent.tasks.task_folder import JOB, TASKS, TaskFolder
from presage.system.atomic_file import sync_folder
from presage.system.regular_file import open_regular

NEW_PREFIX, OLD_PREFIX = ".new-", ".old-"  # of folders that are being made, or removed
_ROOM_BYTES, _ROOM_FILES = 256 * 1024, 8  # more than most tasks' folders take until they run
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_REMOVING_S = 1.0  # that the removal of a folder may hold up other tasks
_MAKING_S = 60.0  # a folder that is being made is left alone
_HELD_S = 20.0  # for a shim to begin; it takes 0.1 s on a machine that has time

# Neither its environment nor its folder, nor packages beside Presage, can change what a shim is.
_SHIM = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from presage.schedulers.live.agent.tasks.shim import main; main(sys.argv[1])"
)
_PYTHON = (sys.executable, "-I", "-S", "-X", "utf8", "-c")
_PACKAGES = str(Path(presage.__file__).parent.parent)


class TaskState(enum.Enum):
    """What there is of a task."""

    NEW = "new"  # its job was never started: it may be launched
    RUNNING = "running"  # its shim answers for it
    ENDED = "ended"  # nothing of it runs; how it ended is known
    LOST = "lost"  # its shim died without a word; what it left behind, sweep ends


class Task(NamedTuple):
    """A task's folder and what the task is."""

    folder: TaskFolder
    spec: TaskSpec


class Adopted(NamedTuple):
    """What a state folder has: tasks, and folders of which nobody can tell what they are."""

    tasks: tuple[Task, ...]
    damaged: tuple[TaskFolder, ...]


def create(state: Path, spec: TaskSpec, wanted: Wanted) -> Task:
    """Make a task's folder, durably; nothing runs yet.

    Parameters
    ----------
    state : Path
        The node's state folder, on a local disk.

    Raises
    ------
    TaskFolderError
        There is one of this job and attempt, or it cannot be written, or that of its checkpoints:
        then there is none.
    """
    tasks = state.resolve() / TASKS
    target = tasks / task_name(spec.job_id, spec.attempt)
    try:
        checkpoint = Path(spec.checkpoint)
        checkpoint.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        make_own(checkpoint, spec.account)
    except OSError as error:
        raise TaskFolderError(
            f"checkpoint folder {spec.checkpoint} cannot be made ({error.strerror}); every node "
            "has to have room there, and let the agent give it to the job's account"
        ) from error
    try:
        tasks.mkdir(mode=0o711, parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=tasks))
        try:
            _fill(partial, spec, wanted)
            # Not where there is one already: no folder that is not empty is replaced.
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(tasks)
    except (OSError, TypeError, ValueError) as error:  # ``more`` may be no JSON
        said = getattr(error, "strerror", None) or error  # without a name that differs each time
        raise TaskFolderError(
            f"task folder {target} cannot be made ({said}); each attempt at a job has a number of "
            "its own, and its folder needs capacity on the disk"
        ) from error
    return Task(TaskFolder(target), spec)


def no_capacity(error: TaskFolderError | InvalidJobError) -> bool:
    """Whether :func:`create` failed for a disk that is full or broken, and not for the task."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OF_THE_DISK


def cannot_make(state: Path, checkpoints: Path, needed_bytes: int = 0) -> str:
    """Why no task can be made on a node now, though nothing is wrong with the task; or ""."""
    for folder in (state.resolve() / TASKS, checkpoints):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                files = [
                    stack.enter_context(tempfile.TemporaryFile(dir=folder, prefix=NEW_PREFIX))
                    for _ in range(_ROOM_FILES)
                ]
                files[0].write(bytes(max(_ROOM_BYTES, needed_bytes)))
                files[0].flush()
                os.fsync(files[0].fileno())
        except OSError as error:
            return f"{folder} takes no file ({error.strerror}); make room there"
    return ""


def launch(task: Task) -> bool:
    """Let a shim start the job; it lives on without this process.

    Returns
    -------
    bool
        Whether this shim holds the folder now; False if another one does, or the job was started
        before. It never is twice.

    Raises
    ------
    TaskFolderError
        There is no shim.
    """
    folder = task.folder
    command = [*_PYTHON, _SHIM, _PACKAGES, str(folder.path)]
    # A shim is not of a task, even where its agent is, as in a test of a cluster on a cluster.
    variables = {name: value for name, value in os.environ.items() if name not in (TASK, STATE)}
    try:
        opened = open_regular(folder.path / "shim.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(opened, "ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd="/",
                env=variables, timeout=_HELD_S, check=True,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise TaskFolderError(
            f"task folder {folder.path}: no shim ({error}); see its shim.log"
        ) from error
    held = done.stdout == b"held\n"
    if not held and state_of(folder) is TaskState.NEW:
        raise TaskFolderError(
            f"task folder {folder.path}: its shim died as it began; see its shim.log"
        )
    return held


def cannot_launch() -> str:
    """Why no shim can be launched on this machine now; or ""."""
    command = [*_PYTHON, _SHIM.rpartition("; ")[0], _PACKAGES]
    try:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            cwd="/", timeout=_HELD_S, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"no task's process can begin ({said or error}); mend Python or Presage here"
    except (OSError, subprocess.SubprocessError) as error:
        return f"no process can be made here ({error}); see its limits of processes and memory"
    return ""


def adopt(state: Path) -> Adopted:
    """All tasks of a state folder, in the order of their names."""
    tasks, damaged = [], []
    for path in sorted((state.resolve() / TASKS).glob("[!.]*")):
        folder = TaskFolder(path)
        try:
            tasks.append(Task(folder, folder.spec()))
        except InvalidJobError:
            damaged.append(folder)
    return Adopted(tuple(tasks), tuple(damaged))


def state_of(folder: TaskFolder) -> TaskState:
    """What there is of a task now."""
    # In this order: a shim holds its folder before it notes that it starts the job, and until it
    # has noted how that ended.
    started = folder.started
    if folder.holder() is not None:
        return TaskState.RUNNING
    if folder.exit() is not None:
        return TaskState.ENDED
    return TaskState.LOST if started or folder.over else TaskState.NEW


def want(folder: TaskFolder, wanted: Wanted) -> bool:
    """Have a task do something; told to its shim at once, which also looks by itself.

    Returns
    -------
    bool
        Whether anything else had been wanted before.

    Raises
    ------
    TaskFolderError
        It cannot be written; what was wanted before is.
    """
    if folder.wanted() == wanted:
        return False
    try:
        folder.write_wanted(wanted)
    except OSError as error:
        raise TaskFolderError(
            f"task folder {folder.path}: cannot say what is wanted ({error}); make room on the disk"
        ) from error
    _wake(folder)
    return True


def remove(folder: TaskFolder) -> None:
    """Forget a task of which nothing runs; what is large goes on later.

    Raises
    ------
    TaskFolderError
        Its shim holds it; or the folder cannot be removed.
    """
    if folder.holder() is not None:
        raise TaskFolderError(
            f"task folder {folder.path} is held by process {folder.holder()}; end the task first"
        )
    old = folder.path.with_name(f"{OLD_PREFIX}{os.urandom(8).hex()}")
    try:
        folder.path.rename(old)
        remove_tree(old, _REMOVING_S)
    except OSError as error:
        raise TaskFolderError(f"task folder {folder.path} cannot be removed ({error})") from error


def remove_leftovers(state: Path, within_s: float) -> None:
    """Go on with the removal of folders that had no end, as of a job that made a million files."""
    until_s = time.monotonic() + within_s
    for prefix, age_s in ((OLD_PREFIX, 0.0), (NEW_PREFIX, _MAKING_S)):
        for path in (state.resolve() / TASKS).glob(f"{prefix}*"):
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime >= age_s:
                    remove_tree(path, until_s - time.monotonic())


def _fill(folder: Path, spec: TaskSpec, wanted: Wanted) -> None:
    # What a shim will need to open stands ready: a full disk must not stop it.
    for name in ("lock", "log", "shim.log"):
        (folder / name).touch(mode=0o600)
    make_own(folder / JOB, spec.account)
    if spec.account is not None:  # which has to come through to its own part
        folder.chmod(0o711)
    write_first(folder / "log", 0)
    write_json(folder / "wanted.json", wanted.to_json())
    write_json(folder / "spec.json", spec.to_json(), durable=True)


def _wake(folder: TaskFolder) -> None:
    said, holder = folder.shim_state(), folder.holder()
    # A shim that has not yet spoken may not yet hear either; it reads its orders anyway.
    if holder and said is not None and said.shim_pid == holder:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(holder, signal.SIGHUP)
