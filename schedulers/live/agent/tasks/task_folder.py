"""Folder of a task: its files, and the lock that its shim holds."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.tasks.json_file import overwrite_json, read_json, write_json
from presage.schedulers.live.agent.tasks.task import DesiredState, ShimState, TaskExit, TaskSpec
from presage.schedulers.live.job_progress import Report, read_progress
from presage.system.files.regular_file import open_regular

TASKS = "tasks"
JOB = "job"  # the subfolder that belongs to the job; the rest belongs to the agent
_NO_LOCK = frozenset((errno.ENOENT, errno.ELOOP, errno.EINVAL))
# struct flock of <fcntl.h> on Linux: kind, whence, start, length, pid.
_FLOCK = "hhlli4x"
_MAX_SPEC_BYTES = 16 * 1024 * 1024  # a job of 1 MiB, twice, with each byte escaped


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """Folder ``<state>/tasks/<name>`` of one attempt of a job.

    A shim holds it by a record lock on ``lock``: the kernel reports the holder without taking the
    lock, and child processes do not inherit it.
    """

    path: Path

    @property
    def name(self) -> str:
        """Name from :func:`presage.schedulers.live.agent.tasks.file_names.task_name`."""
        return self.path.name

    @property
    def state(self) -> Path:
        """State folder of the node."""
        return self.path.parent.parent

    @property
    def log(self) -> Path:
        """Log of the job's standard output and standard error."""
        return self.path / "log"

    @property
    def job_folder(self) -> Path:
        """The only subfolder that a job of another account can write to."""
        return self.path / JOB

    @property
    def progress_file(self) -> Path:
        """Progress file, written by the job."""
        return self.job_folder / "progress.json"

    @property
    def desired_state_file(self) -> Path:
        """Desired state, written by the agent and read by the shim."""
        return self.path / "desired_state.json"

    @property
    def lock_file(self) -> Path:
        """File with the record lock."""
        return self.path / "lock"

    def spec(self) -> TaskSpec:
        """Read the spec of the task.

        Raises
        ------
        InvalidJobError
            Its file is missing or damaged.
        """
        row = read_json(self.path / "spec.json", _MAX_SPEC_BYTES)
        if row is None:
            raise InvalidJobError(
                f"task folder {self.path}: no JSON object in spec.json; remove the folder"
            )
        return TaskSpec.from_json(row)

    def desired_state(self) -> DesiredState | None:
        """Read the desired state of the task; None if it cannot be read."""
        row = read_json(self.desired_state_file)
        try:
            return None if row is None else DesiredState.from_json(row)
        except InvalidJobError:
            return None

    def write_desired_state(self, desired: DesiredState) -> None:
        """Write the desired state, also if the task has filled the disk. Raises OSError."""
        overwrite_json(self.desired_state_file, desired.to_json())

    @property
    def started(self) -> bool:
        """Whether a shim has begun to start the job; then no other shim does."""
        return (self.path / "state.json").exists()

    @property
    def over(self) -> bool:
        """Whether a shim has recorded the exit; the file may be damaged since."""
        return (self.path / "exit.json").exists()

    def shim_state(self) -> ShimState | None:
        """Read the state of the shim; None if there is none, or its file is damaged."""
        row = read_json(self.path / "state.json")
        return None if row is None else ShimState.from_json(row)

    def write_shim_state(self, state: ShimState) -> None:
        """Write the state of the shim durably. Raises OSError."""
        write_json(self.path / "state.json", asdict(state), durable=True)

    def progress(self) -> Report | None:
        """Read the progress that the job reports; None if it reports none."""
        return read_progress(self.progress_file)

    def exit(self) -> TaskExit | None:
        """Read the exit of the task; None if it has not ended, or the file is damaged."""
        row = read_json(self.path / "exit.json")
        return None if row is None else TaskExit.from_json(row)

    def write_exit(self, task_exit: TaskExit) -> None:
        """Write the exit of the task durably. Raises OSError."""
        write_json(self.path / "exit.json", asdict(task_exit), durable=True)

    def hold(self) -> bool:
        """Lock the folder until this process ends; return False if another process holds it."""
        # Never closed: closing any descriptor of the file releases the lock of the process.
        lock = open_regular(self.lock_file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def holder(self) -> int | None:
        """Return the process that holds the folder; None if none does, or this process does.

        Returns None if the job has replaced the lock by something that is not a file, and 0 if the
        holder is not visible, as in another container, or cannot be determined.
        """
        try:
            lock = open_regular(self.lock_file)
        except OSError as error:
            # With too many open files: assume a holder, so that no task runs twice.
            return None if error.errno in _NO_LOCK else 0
        try:
            query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, query))
        finally:
            os.close(lock)
        return None if kind == fcntl.F_UNLCK else pid
