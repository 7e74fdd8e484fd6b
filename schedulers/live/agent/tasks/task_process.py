"""Operations of an agent on its tasks: create, launch, adopt, change and remove them.

All state is in files, so an agent can be killed and restarted at any moment.
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
from presage.schedulers.live.agent.isolation.safe_folders import make_private_folder, remove_tree
from presage.schedulers.live.agent.tasks.file_names import task_name
from presage.schedulers.live.agent.tasks.json_file import write_json
from presage.schedulers.live.agent.tasks.log_file import write_start_offset
from presage.schedulers.live.agent.tasks.task import DesiredState, TaskSpec
from presage.schedulers.live.agent.tasks.task_folder import JOB, TASKS, TaskFolder
from presage.system.files.atomic_file import sync_folder
from presage.system.files.regular_file import open_regular

NEW_PREFIX, OLD_PREFIX = ".new-", ".old-"  # prefixes of folders that are being created, or removed
_PROBE_BYTES, _PROBE_FILES = 256 * 1024, 8  # more than most task folders take before the start
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_REMOVING_S = 1.0  # limit of a removal that delays other tasks
_CREATING_S = 60.0  # a younger folder may still be being created
_SHIM_START_S = 20.0  # limit for a shim to start; it takes 0.1 s on an idle machine

# Its environment, its folder and packages installed next to Presage cannot change a shim's code.
SHIM = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from presage.schedulers.live.agent.tasks.shim import main; main(sys.argv[1])"
)
PYTHON = (sys.executable, "-I", "-S", "-X", "utf8", "-c")
_PACKAGES = str(Path(presage.__file__).parent.parent)


class TaskState(enum.Enum):
    """State of a task, from its folder and its shim."""

    NEW = "new"  # its job was never started: it may be launched
    RUNNING = "running"  # its shim holds the folder
    ENDED = "ended"  # none of its processes runs; its exit is recorded
    LOST = "lost"  # its shim died without recording an exit; ``sweep`` kills what it left


class Task(NamedTuple):
    """Folder and spec of a task."""

    folder: TaskFolder
    spec: TaskSpec


class Adopted(NamedTuple):
    """Content of a state folder: tasks, and folders whose spec cannot be read."""

    tasks: tuple[Task, ...]
    damaged: tuple[TaskFolder, ...]


def create(state: Path, spec: TaskSpec, desired: DesiredState) -> Task:
    """Create a task's folder, durably, without starting the task.

    Parameters
    ----------
    state : Path
        State folder of the node, on a local disk.

    Raises
    ------
    TaskFolderError
        The folder of this job and attempt exists, or it or the checkpoint folder cannot be
        written. No task folder is left behind.
    """
    tasks = state.resolve() / TASKS
    target = tasks / task_name(spec.job_id, spec.attempt)
    try:
        checkpoint = Path(spec.checkpoint)
        checkpoint.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        make_private_folder(checkpoint, spec.account)
    except OSError as error:
        raise TaskFolderError(
            f"checkpoint folder {spec.checkpoint} cannot be created ({error.strerror}); free space "
            "there, and let the agent change its owner to the job's account"
        ) from error
    try:
        tasks.mkdir(mode=0o711, parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=tasks))
        try:
            _fill(partial, spec, desired)
            # Fails if the folder exists: rename replaces no folder that is not empty.
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(tasks)
    except (OSError, TypeError, ValueError) as error:  # ``agent_data`` may not be JSON
        reason = getattr(error, "strerror", None) or error  # without the random name in the error
        raise TaskFolderError(
            f"task folder {target} cannot be created ({reason}); free disk space, or check that "
            "each attempt of a job has its own number"
        ) from error
    return Task(TaskFolder(target), spec)


def is_disk_fault(error: TaskFolderError | InvalidJobError) -> bool:
    """Return whether :func:`create` failed because the disk is full or broken."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _DISK_ERRORS


def why_cannot_create(state: Path, checkpoints: Path, needed_bytes: int = 0) -> str:
    """Return why the node's disk accepts no task now; "" if it does."""
    for folder in (state.resolve() / TASKS, checkpoints):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                files = [
                    stack.enter_context(tempfile.TemporaryFile(dir=folder, prefix=NEW_PREFIX))
                    for _ in range(_PROBE_FILES)
                ]
                files[0].write(bytes(max(_PROBE_BYTES, needed_bytes)))
                files[0].flush()
                os.fsync(files[0].fileno())
        except OSError as error:
            return f"no file can be written in {folder} ({error.strerror}); free space there"
    return ""


def launch(task: Task) -> bool:
    """Start a shim, which starts the job and outlives this process.

    Returns
    -------
    bool
        Whether this shim holds the folder now; False if another shim does, or the job was started
        before. A job is never started twice.

    Raises
    ------
    TaskFolderError
        No shim could be started.
    """
    folder = task.folder
    command = [*PYTHON, SHIM, _PACKAGES, str(folder.path)]
    # A shim does not belong to its agent's task, if the agent runs in one, as in nested tests.
    variables = {name: value for name, value in os.environ.items() if name not in (TASK, STATE)}
    try:
        opened = open_regular(folder.path / "shim.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(opened, "ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd="/",
                env=variables, timeout=_SHIM_START_S, check=True,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise TaskFolderError(
            f"task folder {folder.path}: no shim could be started ({error}); see its shim.log"
        ) from error
    held = done.stdout == b"held\n"
    if not held and task_state(folder) is TaskState.NEW:
        raise TaskFolderError(
            f"task folder {folder.path}: its shim died at its start; see its shim.log"
        )
    return held


def why_cannot_launch() -> str:
    """Return why no shim can be launched on this machine now; "" if one can."""
    command = [*PYTHON, SHIM.rpartition("; ")[0], _PACKAGES]
    try:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            cwd="/", timeout=_SHIM_START_S, check=True,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        last_line = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last_line or error
        return f"no task can be started ({reason}); repair the installation of Python or Presage"
    except (OSError, subprocess.SubprocessError) as error:
        return f"no process can be started ({error}); check the limits of processes and memory"
    return ""


def adopt(state: Path) -> Adopted:
    """Return all tasks of a state folder, in the order of their names."""
    tasks, damaged = [], []
    for path in sorted((state.resolve() / TASKS).glob("[!.]*")):
        folder = TaskFolder(path)
        try:
            tasks.append(Task(folder, folder.spec()))
        except InvalidJobError:
            damaged.append(folder)
    return Adopted(tuple(tasks), tuple(damaged))


def task_state(folder: TaskFolder) -> TaskState:
    """Return the current state of a task."""
    # In this order: a shim holds its folder from before it records the start of the job until
    # after it has recorded the exit.
    started = folder.started
    if folder.holder() is not None:
        return TaskState.RUNNING
    if folder.exit() is not None:
        return TaskState.ENDED
    return TaskState.LOST if started or folder.over else TaskState.NEW


def set_desired_state(folder: TaskFolder, desired: DesiredState) -> bool:
    """Write the desired state of a task and notify its shim, which also polls.

    Returns
    -------
    bool
        Whether the desired state has changed.

    Raises
    ------
    TaskFolderError
        It cannot be written; the previous desired state remains.
    """
    if folder.desired_state() == desired:
        return False
    try:
        folder.write_desired_state(desired)
    except OSError as error:
        raise TaskFolderError(
            f"task folder {folder.path}: the desired state cannot be written ({error}); free disk "
            "space"
        ) from error
    _wake(folder)
    return True


def remove(folder: TaskFolder) -> None:
    """Remove a task that has ended; :func:`remove_leftovers` completes a large removal.

    Raises
    ------
    TaskFolderError
        Its shim holds the folder, or the folder cannot be removed.
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
    """Continue removals that took too long, as of the folder of a job with a million files."""
    until_s = time.monotonic() + within_s
    for prefix, age_s in ((OLD_PREFIX, 0.0), (NEW_PREFIX, _CREATING_S)):
        for path in (state.resolve() / TASKS).glob(f"{prefix}*"):
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime >= age_s:
                    remove_tree(path, until_s - time.monotonic())


def _fill(folder: Path, spec: TaskSpec, desired: DesiredState) -> None:
    # Files that a shim will open exist from the start: a full disk must not stop it.
    for name in ("lock", "log", "shim.log"):
        (folder / name).touch(mode=0o600)
    make_private_folder(folder / JOB, spec.account)
    if spec.account is not None:  # it has to reach its own folder
        folder.chmod(0o711)
    write_start_offset(folder / "log", 0)
    write_json(folder / "desired_state.json", desired.to_json())
    write_json(folder / "spec.json", spec.to_json(), durable=True)


def _wake(folder: TaskFolder) -> None:
    state, holder = folder.shim_state(), folder.holder()
    # A shim that has not recorded its state may not handle signals yet; it reads the file anyway.
    if holder and state is not None and state.shim_pid == holder:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(holder, signal.SIGHUP)
