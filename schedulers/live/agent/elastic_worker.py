"""How a worker of an elastic job finds its leader and its memory share: files of its agent.

The files are in the task's folder, which belongs to the agent; the worker may only read them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from presage.schedulers.live.agent.isolation.account import Account
from presage.schedulers.live.agent.tasks.file_names import task_name
from presage.schedulers.live.agent.tasks.task_folder import TASKS
from presage.schedulers.live.agent.tasks.task_process import Task
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.files.atomic_file import write_new

FOLDER = "elastic"  # in the task's folder
# Each worker is a process group of its own for torch.distributed; training sums the gradients.
PROCESS_GROUP = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
}
MEMORY_SHARE = "memory_bytes"  # as in presage.training.job_folder


def worker_variables(
    worker: pb.ElasticWorker, state: Path, task: tuple[str, int]
) -> dict[str, str]:
    """Return the environment variables of a worker; none for another task.

    Parameters
    ----------
    state : Path
        State folder of the agent.
    task : tuple of (str, int)
        Id and attempt of the task.
    """
    if not worker.job_id:
        return {}
    return {
        **PROCESS_GROUP,
        "PRESAGE_ELASTIC_JOB": worker.leader_job,
        "PRESAGE_ELASTIC_STATE": str(state.resolve() / TASKS / task_name(*task) / FOLDER),
        "PRESAGE_ELASTIC_WORKER": worker.name,
    }


class LeaderFiles:
    """Files with addresses of leaders and memory shares, written when one changes."""

    def __init__(self) -> None:
        self._written: dict[Path, tuple[str, int, str]] = {}
        self._shares: dict[Path, int] = {}

    def write_share(self, task: Task, worker: pb.ElasticWorker, memory_bytes: int) -> None:
        """Write how much memory of its device a worker may use; 0 for all of it.

        The worker applies it at the end of a step.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        folder = self._folder(task, worker)
        if self._shares.get(folder) != memory_bytes:
            _replace(folder / MEMORY_SHARE, str(memory_bytes), task.spec.account)
            self._shares[folder] = memory_bytes

    def write(self, task: Task, worker: pb.ElasticWorker, controller_host: str) -> None:
        """Write where the leader of a task's job is.

        Parameters
        ----------
        controller_host : str
            Host of the controller, next to which leaders run.

        Raises
        ------
        OSError
            The files cannot be written.
        """
        folder = self._folder(task, worker)
        address = controller_host, worker.port, worker.token
        if self._written.get(folder) == address:
            return
        if worker.port:
            _replace(folder / "token", worker.token, task.spec.account)
            row = {"host": controller_host, "port": worker.port, "pid": 0}
            _replace(folder / "leader.json", json.dumps(row), task.spec.account)
        self._written[folder] = address

    def _folder(self, task: Task, worker: pb.ElasticWorker) -> Path:
        """Return the folder that a worker reads; it is created if it does not exist."""
        folder = task.folder.path / FOLDER / worker.leader_job
        if folder not in self._written and folder not in self._shares:
            for path in (folder.parent, folder):
                path.mkdir(exist_ok=True)
                path.chmod(0o711)  # whatever the umask is: the account of the job has to reach it
        return folder

    def forget(self, task: Task) -> None:
        """Drop what was written for a task that is removed."""
        for files in (self._written, self._shares):
            for folder in [path for path in files if task.folder.path in path.parents]:
                del files[folder]


def _replace(path: Path, text: str, account: Account | None) -> None:
    """Replace a file that only the account of the job may read."""
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        write_new(partial, text.encode(), durable=False, mode=0o400)
        if account is not None:
            os.chown(partial, account.uid, account.gid, follow_symlinks=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
