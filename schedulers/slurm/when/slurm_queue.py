"""Jobs and nodes of a Slurm cluster, as squeue and sinfo print them.

No free text of a user is read, so that no name or comment can pass for another column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from presage.errors import ConfigError
from presage.schedulers.cluster_files.hostlist import expand_hostlist
from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.slurm_commands import (
    cells_of,
    format_option,
    minutes_of,
    run_slurm,
    seconds_of,
    slurm_settings,
    unix_s_of,
)

JOB_WIDTHS = {
    "JobID": 16, "ArrayJobID": 16, "ArrayTaskID": 16, "HetJobID": 16, "State": 20, "Reason": 40,
    "PriorityLong": 24, "Partition": 400, "NumNodes": 12, "NumTasks": 12, "TimeLimit": 20,
    "TimeUsed": 20, "SubmitTime": 20, "EligibleTime": 20, "StartTime": 20, "EndTime": 20,
    "tres-per-job": 120, "tres-per-node": 120, "tres-per-socket": 120, "tres-per-task": 120,
    "NodeList": 4000,
}  # fmt: skip
JOB_FORMAT = format_option(JOB_WIDTHS, "admin_comment:1024")
NODE_WIDTHS = {"NodeList": 100, "PartitionName": 100, "Gres": 400, "StateComplete": 100}
NODE_FORMAT = format_option(NODE_WIDTHS)
# Jobs that hold their GPUs. COMPLETING and STAGE_OUT are not among them: those jobs have ended, and
# release their GPUs within seconds.
RUNNING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING"})
STOPPED = frozenset({"SUSPENDED", "STOPPED"})
WAITING = frozenset({"PENDING"})
_UNAVAILABLE = frozenset({
    "down", "drained", "draining", "drain", "fail", "failing", "error", "unknown", "future",
    "maint", "maintenance", "no_respond", "not_responding", "power_drain", "reboot",
    "reboot_issued", "reboot_requested", "reserved", "inval", "invalid", "invalid_reg", "perfctrs",
    "blocked",
})  # fmt: skip
_POWERED_DOWN = frozenset({"powered_down", "power_down", "powering_down"})
# A type has a letter, and may begin with a digit as "1g.10gb" does.
_GRES = re.compile(
    r"(?:gres[:/])?(gpu|shard)(?::(?=[\w.-]*[A-Za-z])([\w.-]+))?(?:[:=](\d{1,9}))?(?:\(.*\))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One job that squeue lists; a task of a job array is a job of its own.

    Attributes
    ----------
    name : str
        Id as users write it: "12", or "12_3" for a task of an array.
    reason : str
        Slurm's reason for which it waits.
    priority : int
        Slurm's priority; jobs with a higher one precede.
    nodes : int
        Number of nodes, the least one while it waits.
    gpu_type : str
        GRES type of its GPUs; "" for any.
    gpus : int or None
        All of its GPUs; None if the request is of a form that is not read.
    is_per_node : bool
        Whether it requested them by node: then each node has to have that many.
    shards : int
        All of its shards of GPUs.
    is_heterogeneous : bool
        Whether it is one part of a heterogeneous job.
    limit_s : float
        Present time limit; infinite without one.
    used_s : int
        Run time so far, without the time that it was suspended.
    submitted_unix_s, eligible_unix_s, started_unix_s, ended_unix_s : int
        0 if it has not happened, and is not planned.
    on_nodes : tuple of str
        Nodes that it runs on.
    """

    name: str
    state: str
    reason: str
    priority: int
    partitions: tuple[str, ...]
    nodes: int
    gpu_type: str
    gpus: int | None
    shards: int
    is_per_node: bool = True
    is_heterogeneous: bool = False
    limit_s: float
    used_s: int
    submitted_unix_s: int
    eligible_unix_s: int
    started_unix_s: int
    ended_unix_s: int
    on_nodes: tuple[str, ...]
    note: JobNote | None

    @property
    def own_limit_s(self) -> float:
        """Time limit of its user, to which the watcher extends the present one."""
        note = self.note
        is_managed = note is not None and note.set_minutes is not None
        if note is None or not is_managed or self.limit_s != 60 * (note.set_minutes or 0):
            return self.limit_s
        return math.inf if note.own_minutes is None else 60.0 * note.own_minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node.

    Attributes
    ----------
    gpus : mapping of str to int
        Number of its GPUs by GRES type; "" for GPUs without a type.
    shards : int
        Shards of all of its GPUs.
    is_available : bool
        Whether jobs start there: it is neither down nor drained or reserved.
    is_powered_down : bool
        Whether Slurm powers it up first.
    """

    name: str
    partitions: frozenset[str]
    gpus: Mapping[str, int]
    shards: int
    is_available: bool
    is_powered_down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmState:
    """State of a Slurm cluster.

    Attributes
    ----------
    now_unix_s : float
        Time at which it was read.
    jobs : tuple of QueuedJob
        Jobs that wait, run, or ended less than ``ended_for_s`` ago.
    ended_for_s : float
        Time for which slurmctld keeps jobs that have ended (MinJobAge).
    has_backfill : bool
        Whether Slurm backfills (SchedulerType).
    """

    now_unix_s: float
    jobs: tuple[QueuedJob, ...]
    nodes: tuple[SlurmNode, ...]
    ended_for_s: float = 0.0
    has_backfill: bool = True


def read_state(now_unix_s: float) -> SlurmState:
    """Return the state of the cluster that ``SLURM_CONF`` names.

    Raises
    ------
    ServiceError
        slurmctld does not answer.
    """
    jobs = run_slurm(["squeue", "--noheader", "--array", "--all", "--states=all", JOB_FORMAT])
    nodes = run_slurm(["sinfo", "--noheader", "--Node", "--all", NODE_FORMAT])
    settings = slurm_settings()
    age = re.match(r"\d+", settings.get("MinJobAge", ""))
    return SlurmState(
        now_unix_s=now_unix_s,
        jobs=tuple(parse_queue(jobs)),
        nodes=tuple(parse_nodes(nodes)),
        ended_for_s=float(age[0]) if age else 0.0,
        has_backfill=settings.get("SchedulerType", "sched/backfill") == "sched/backfill",
    )


def parse_queue(text: str) -> Iterator[QueuedJob]:
    """Yield the jobs in the output of squeue with ``JOB_FORMAT``, without lines of other forms."""
    for line in text.splitlines():
        cells, comment = cells_of(line, JOB_WIDTHS)
        try:
            yield _job(cells, JobNote.parse(comment))
        except (ValueError, ConfigError):
            continue


def _job(cells: Mapping[str, str], note: JobNote | None) -> QueuedJob:
    nodes, tasks = int(cells["NumNodes"]), int(cells["NumTasks"])
    # A request for each node, next to one for the job, says how the latter is spread.
    factors = {"tres-per-job": 1, "tres-per-node": nodes, "tres-per-task": tasks}
    requests = {column: list(parse_gres(cells[column])) for column in factors}
    column = next((name for name, found in requests.items() if found), "tres-per-job")
    counts = {"gpu": 0, "shard": 0}
    for name, _, count in requests[column]:
        counts[name] += count * factors[column]
    types = {kind for of in requests.values() for name, kind, _ in of if name == "gpu" and kind}
    is_readable = len(types) <= 1 and not list(parse_gres(cells["tres-per-socket"]))
    task = cells["ArrayTaskID"]
    minutes = None if cells["TimeLimit"] == "NOT_SET" else minutes_of(cells["TimeLimit"])
    return QueuedJob(
        name=f"{cells['ArrayJobID']}_{task}" if task.isdigit() else str(int(cells["JobID"])),
        state=cells["State"],
        reason=cells["Reason"],
        priority=int(cells["PriorityLong"]),
        partitions=tuple(cells["Partition"].split(",")),
        nodes=nodes,
        gpu_type=next(iter(types), ""),
        gpus=counts["gpu"] if is_readable else None,
        shards=counts["shard"],
        is_per_node=bool(requests["tres-per-node"]),
        is_heterogeneous=cells["HetJobID"].isdigit() and cells["HetJobID"] != "0",
        limit_s=math.inf if minutes is None else 60.0 * minutes,
        used_s=0 if cells["TimeUsed"] == "INVALID" else seconds_of(cells["TimeUsed"]),
        submitted_unix_s=unix_s_of(cells["SubmitTime"]),
        eligible_unix_s=unix_s_of(cells["EligibleTime"]),
        started_unix_s=unix_s_of(cells["StartTime"]),
        ended_unix_s=unix_s_of(cells["EndTime"]),
        on_nodes=tuple(expand_hostlist(cells["NodeList"])) if cells["NodeList"] else (),
        note=note,
    )


def parse_nodes(text: str) -> Iterator[SlurmNode]:
    """Yield the nodes in the output of sinfo with ``NODE_FORMAT``: one line for each partition."""
    lines: dict[str, list[Mapping[str, str]]] = {}
    for line in text.splitlines():
        cells, _ = cells_of(line, NODE_WIDTHS)
        lines.setdefault(cells["NodeList"], []).append(cells)
    for name, rows in lines.items():
        gpus: dict[str, int] = {}
        shards = 0
        for gres, kind, count in parse_gres(rows[0]["Gres"]):
            if gres == "shard":
                shards += count
            else:
                gpus[kind] = gpus.get(kind, 0) + count
        words = re.split(r"[+]", rows[0]["StateComplete"].lower().rstrip("*~#!%$@^-"))
        yield SlurmNode(
            name=name,
            partitions=frozenset(row["PartitionName"].rstrip("*") for row in rows),
            gpus=gpus,
            shards=shards,
            is_available=not _UNAVAILABLE & set(words),
            is_powered_down=bool(_POWERED_DOWN & set(words)),
        )


def parse_gres(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the name ("gpu" or "shard"), type and count of each part of a list of GRES."""
    for part in re.split(r",(?![^(]*\))", text):
        match = _GRES.fullmatch(part.strip())
        if match is not None:
            yield match[1], match[2] or "", int(match[3] or 1)
