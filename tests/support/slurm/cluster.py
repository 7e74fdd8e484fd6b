"""A Slurm cluster of real processes on one machine: slurmctld and several slurmd.

It needs root, because the GPUs of its nodes are device files that ``mknod`` makes, and Debian's
packages ``slurmctld``, ``slurmd`` and ``slurm-client``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.serving.support.processes import free_port
from tests.support.slurm.fast_clock import FastClock
from tests.support.waiting import wait_until

T = TypeVar("T")

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
SHARDS_PER_GPU = 10
_BACKFILL = "SchedulerType=sched/backfill"
_CONF = """
ClusterName=presage
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu,shard
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=3600
InactiveLimit=0
KillWait=2
MessageTimeout=60
MpiDefault=none
"""


def missing_slurm() -> str:
    """Return why no cluster can be started here; "" if one can."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)}); see .ci/run"
    return "" if os.geteuid() == 0 else "Slurm's GPU device files are made by root only"


class SlurmCluster:
    """A running cluster.

    Parameters
    ----------
    folder : Path
        Folder for its configuration, state and logs.
    speed : float
        How many times faster than real its clock runs, and that of its jobs.
    variables : mapping of str to str
        Further variables of its processes' environment.
    """

    def __init__(self, folder: Path, speed: float, variables: Mapping[str, str]) -> None:
        self.folder, self._variables = folder, variables
        self._clock = FastClock(speed) if speed != 1 else None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Environment of programs that use the cluster."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
        out = {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), **self._variables}
        return {**out, **self._clock.variables} if self._clock else out

    def start(self, name: str) -> None:
        """Start ``slurmctld`` or the ``slurmd`` of a node."""
        conf = str(self.folder / "slurm.conf")
        command = [name, "-D", "-f", conf]
        if name != "slurmctld":
            command = ["slurmd", "-D", "-N", name, "-f", conf]
        with (self.folder / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )

    def kill(self, name: str) -> None:
        """End ``slurmctld`` or the ``slurmd`` of a node with SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(timeout=10)

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return the output of a program that uses the cluster."""
        done = self.try_run(*command, env=env)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def try_run(
        self, *command: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program that uses the cluster and may fail."""
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.environment, **(env or {})},
            cwd=self.folder,
        )

    def submit(self, command: str, *options: str, env: Mapping[str, str] | None = None) -> int:
        """Submit a batch job that runs a shell command; return its id."""
        wrapped = ["--parsable", "--output=/dev/null", *options, f"--wrap={command}"]
        return int(self.run("sbatch", *wrapped, env=env).split(";")[0])

    def job(self, job_id: int | str) -> dict[str, str]:
        """Return the fields of a job that ``scontrol show job`` prints."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(job_id)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job_id: int, *states: str, timeout_s: float = 60.0) -> dict[str, str]:
        """Wait until a job is in one of the states; return its fields."""
        return self.until(
            lambda: job if (job := self.job(job_id))["JobState"] in states else None,
            f"job {job_id} in {states}",
            timeout_s,
        )

    def until(self, find: Callable[[], T | None], named: str, timeout_s: float = 60.0) -> T:
        """Call ``find`` until it returns something else than None, and return that."""
        found: list[T | None] = []

        def is_found() -> bool:
            found[:] = [find()]
            return found[0] is not None

        wait_until(is_found, timeout_s, lambda: f"{named}\n{self.logs()}", pause_s=0.1)
        assert found[0] is not None
        return found[0]

    def logs(self) -> str:
        """Return the last lines of the logs."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def stop(self) -> None:
        """End all processes of the cluster, those of jobs included."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
            process.wait(timeout=10)
        if self._clock is not None:
            self._clock.close()
        for pid in _processes_with(f"SLURM_CONF={self.folder / 'slurm.conf'}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def slurm(
    folder: Path,
    *,
    nodes: int = 3,
    gpus: int = 2,
    cpus: int = 8,
    memory_mib: int = 16_000,
    speed: float = 1,
    partitions: Sequence[str] = ("PartitionName=main Nodes=ALL Default=YES DefaultTime=60",),
    settings: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    user: str = "root",
) -> Iterator[SlurmCluster]:
    """Yield a running cluster whose nodes are idle.

    Parameters
    ----------
    gpus : int
        GPUs of each node, of type a100, each with ``SHARDS_PER_GPU`` shards.
    partitions, settings : sequence of str
        Further lines of slurm.conf.
    user : str
        SlurmUser. Another one than root has to be able to reach the folder.
    files : mapping of str to str
        Further files in the folder of slurm.conf, such as job_submit.lua, by name.
    """
    names = [f"n{i + 1}" for i in range(nodes)]
    devices = folder / "dev"
    for path in (folder / "state", folder / "spool", devices):
        path.mkdir(parents=True)
    lines = [
        _CONF.format(
            host=socket.gethostname().split(".")[0],
            controller_port=free_port(),
            folder=folder,
            user=user,
        ),
        *([] if any(line.startswith("SchedulerType=") for line in settings) else [_BACKFILL]),
        *settings,
    ]
    gres = [f"gpu:a100:{gpus}", f"shard:{gpus * SHARDS_PER_GPU}"] if gpus else []
    for name in names:
        lines.append(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} "
            f"CPUs={cpus} RealMemory={memory_mib}" + (f" Gres={','.join(gres)}" if gres else "")
        )
    for i in range(gpus):
        os.mknod(devices / f"gpu{i}", 0o666 | 0o020000, os.makedev(195, i))
    (folder / "slurm.conf").write_text("\n".join([*lines, *partitions]) + "\n")
    if gpus:
        (folder / "gres.conf").write_text(
            f"Name=gpu Type=a100 File={devices}/gpu[0-{gpus - 1}]\n"
            f"Name=shard Count={gpus * SHARDS_PER_GPU}\n"
        )
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, user)
    cluster = SlurmCluster(folder, speed, variables or {})
    try:
        for name in ("slurmctld", *names):
            cluster.start(name)
        cluster.until(lambda: _idle_nodes(cluster, nodes), "idle nodes")
        yield cluster
    finally:
        cluster.stop()


def _idle_nodes(cluster: SlurmCluster, nodes: int) -> bool | None:
    done = cluster.try_run("sinfo", "--noheader", "--Node", "--format=%t")
    return True if done.stdout.split().count("idle") >= nodes else None


def _processes_with(variable: str) -> Iterator[int]:
    """Yield the processes that have a variable in their environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)
