"""A task's folder: which file says what, and which process holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.tasks.json_file import overwrite_json, read_json, write_json
from presage.schedulers.live.agent.tasks.task import ShimState, TaskExit, TaskSpec, Wanted
from presage.schedulers.live.job_progress import Report, read_progress
from presage.system.regular_file import open_regular

TASKS = "tasks"
JOB = "job"  # the folder in a task's that is its job's: all else is the agent's
_NO_LOCK = frozenset((errno.ENOENT, errno.ELOOP, errno.EINVAL))
# struct flock of <fcntl.h> on Linux: kind, whence, start, length, pid.
_FLOCK = "hhlli4x"
_MOST_SPEC_BYTES = 16 * 1024 * 1024  # a job of 1 MiB, twice, each byte escaped


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """``<state>/tasks/<name>``, of one attempt at a job.

    A shim holds it by a record lock on ``lock``: the kernel says who holds one without taking it,
    and no child of the holder has it too.
    """

    path: Path

    @property
    def name(self) -> str:
        """As :func:`presage.schedulers.live.agent.tasks.file_names.task_name` has it."""
        return self.path.name

    @property
    def state(self) -> Path:
        """The node's state folder."""
        return self.path.parent.parent

    @property
    def log(self) -> Path:
        """What the job writes to its output and its error output."""
        return self.path / "log"

    @property
    def job_folder(self) -> Path:
        """The only part of the folder that a job of another account can write to."""
        return self.path / JOB

    @property
    def progress_file(self) -> Path:
        """That the job writes."""
        return self.job_folder / "progress.json"

    @property
    def wanted_file(self) -> Path:
        """That the agent writes and the shim heeds."""
        return self.path / "wanted.json"

    @property
    def lock_file(self) -> Path:
        """Of which the lock is."""
        return self.path / "lock"

    def spec(self) -> TaskSpec:
        """What the task is.

        Raises
        ------
        InvalidJobError
            Its file is not there or damaged.
        """
        said = read_json(self.path / "spec.json", _MOST_SPEC_BYTES)
        if said is None:
            raise InvalidJobError(
                f"task folder {self.path}: no JSON object in spec.json; remove the folder"
            )
        return TaskSpec.from_json(said)

    def wanted(self) -> Wanted | None:
        """What the task is to do; None where that cannot be read."""
        said = read_json(self.wanted_file)
        try:
            return None if said is None else Wanted.from_json(said)
        except InvalidJobError:
            return None

    def write_wanted(self, wanted: Wanted) -> None:
        """Also on a full disk, which the task may have filled. Raises OSError."""
        overwrite_json(self.wanted_file, wanted.to_json())

    @property
    def started(self) -> bool:
        """Whether a shim has ever set out to start the job: then no other does."""
        return (self.path / "state.json").exists()

    @property
    def over(self) -> bool:
        """Whether a shim has said how the task ended; its words may be damaged since."""
        return (self.path / "exit.json").exists()

    def shim_state(self) -> ShimState | None:
        """What the shim says; None where there was none yet, or its file is damaged."""
        said = read_json(self.path / "state.json")
        return None if said is None else ShimState.from_json(said)

    def write_shim_state(self, state: ShimState) -> None:
        """Durably. Raises OSError."""
        write_json(self.path / "state.json", asdict(state), durable=True)

    def progress(self) -> Report | None:
        """What the job reports; None where it does not."""
        return read_progress(self.progress_file)

    def exit(self) -> TaskExit | None:
        """How the task ended; None where it did not, or its file is damaged."""
        said = read_json(self.path / "exit.json")
        return None if said is None else TaskExit.from_json(said)

    def write_exit(self, exit_: TaskExit) -> None:
        """Durably. Raises OSError."""
        write_json(self.path / "exit.json", asdict(exit_), durable=True)

    def hold(self) -> bool:
        """Make this process the folder's only one, until it ends; False if another one is."""
        # Never closed: with any descriptor of the file, its process gives up the lock.
        lock = open_regular(self.lock_file, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def holder(self) -> int | None:
        """Process that holds the folder; None where none does, or it is this one.

        A lock that its job has replaced by something else than a file is held by none.

        0 for one that this process cannot see, as in another container, or where it cannot look.
        """
        try:
            lock = open_regular(self.lock_file)
        except OSError as error:
            # With too many files open: what may run is not to run twice.
            return None if error.errno in _NO_LOCK else 0
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
        finally:
            os.close(lock)
        return None if kind == fcntl.F_UNLCK else pid
