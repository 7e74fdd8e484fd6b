"""Records in a task's folder: its spec, desired state, shim state and exit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.isolation.account import Account

FULL_DEVICE_MILLI = 1000
BY_WEIGHT = " weight"  # suffix of an enforcement by weight, which is no hard limit
FREE = "free"  # the share is not enforced
TERMINATE_S = 1.0  # from SIGTERM, after the grace period, to SIGKILL
_LIMITS = ("max_processes", "max_open_files", "max_host_memory_bytes")
LOG_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One attempt of a job on this node.

    Attributes
    ----------
    command : tuple of str
        Program and arguments; the program is searched in the ``PATH`` of ``environment``.
    folder : str
        Working directory; an absolute path.
    environment : mapping of str to str
        Environment of the job, without the variables that Presage adds.
    checkpoint : str
        Folder of the job's checkpoints, the same for all of its attempts; an absolute path,
        created if it does not exist.
    cpus : tuple of int, or None
        Numbers of the processors that it may use; None for those of the agent.
    cuda : tuple of int, or None
        Numbers of its GPUs in the order of the PCI bus; None for no GPUs, which hides all.
    memory_bytes : int
        Memory limit on each of its GPUs; 0 for no limit.
    grace_s : float
        Grace period to write a checkpoint before it ends.
    log_bytes : int
        Size at which its log is rotated.
    hard_limit : bool
        Whether its share is a hard limit; else, if possible, a share under contention.
    weight : int
        Factor of its share under contention, if it is not ``hard_limit``.
    can_grow : bool
        Whether its share may exceed the one at its start. MPS then allows it all threads of its
        GPUs, and unless it is ``hard_limit``, only a weight limits it.
    account : Account or None
        Account of the job's processes; None for the agent's own.
    max_processes, max_open_files, max_host_memory_bytes : int
        Limits as in :class:`presage.schedulers.live.agent.isolation.job_limits.JobLimits`; 0 for
        no limit.
    use_control_groups : bool
        Whether to use control groups, if the machine permits it.
    agent_data : mapping
        JSON object with further state of the agent.
    """

    job_id: str
    attempt: int
    command: tuple[str, ...]
    folder: str
    checkpoint: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cpus: tuple[int, ...] | None = None
    cuda: tuple[int, ...] | None = None
    memory_bytes: int = 0
    grace_s: float = 30.0
    log_bytes: int = LOG_BYTES
    hard_limit: bool = True
    weight: int = 1
    can_grow: bool = False
    account: Account | None = None
    max_processes: int = 0
    max_open_files: int = 0
    max_host_memory_bytes: int = 0
    use_control_groups: bool = True
    agent_data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for error in (self._job_error(), self._process_error(), self._limit_error()):
            if error:
                raise InvalidJobError(f"task of job {self.job_id!r}: {error}")

    def _job_error(self) -> str:
        if not self.job_id:
            return "job_id must not be empty"
        if not _is_count(self.attempt):
            return f"attempt={self.attempt!r}, must be an integer >= 0"
        return ""

    def _process_error(self) -> str:
        if not self.command or not self.command[0]:
            return f"command={self.command!r} names no program"
        if any("\0" in text for text in (*self.command, self.folder, self.checkpoint)):
            return "its command and folders must not contain a zero byte"
        for name in ("folder", "checkpoint"):
            if not getattr(self, name).startswith("/"):
                return f"{name}={getattr(self, name)!r}, must be an absolute path"
        for key, value in self.environment.items():
            if not key or "=" in key or "\0" in key + value:
                return f"{key!r}={value!r} is not a valid environment variable"
        return ""

    def _limit_error(self) -> str:
        if self.cpus is not None and (not self.cpus or not all(map(_is_count, self.cpus))):
            return f"cpus={self.cpus!r}, must be at least one processor number, or None for any"
        if self.cuda is not None and (not self.cuda or not all(map(_is_count, self.cuda))):
            return f"cuda={self.cuda!r}, must be at least one GPU number, or None for no GPU"
        for name in ("memory_bytes", *_LIMITS):
            if not _is_count(getattr(self, name)):
                return f"{name}={getattr(self, name)!r}, must be an integer >= 0 (0: no limit)"
        if not (math.isfinite(self.grace_s) and self.grace_s >= 0):
            return f"grace_s={self.grace_s}, must be a finite number >= 0"
        for name in ("log_bytes", "weight"):
            if not (_is_count(getattr(self, name)) and getattr(self, name) > 0):
                return f"{name}={getattr(self, name)!r}, must be an integer >= 1"
        return ""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for ``spec.json``."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "command": list(self.command),
            "environment": dict(self.environment),
            "cpus": None if self.cpus is None else list(self.cpus),
            "cuda": None if self.cuda is None else list(self.cuda),
            "account": None if self.account is None else self.account.to_json(),
            "agent_data": dict(self.agent_data),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TaskSpec:
        """Read the object that :meth:`to_json` returns.

        Raises
        ------
        InvalidJobError
            It is not such an object.
        """
        try:
            values = {name: row[name] for name in cls.__dataclass_fields__ if name in row}
            values["command"] = _texts(values["command"])
            _texts([values["job_id"], values["folder"], values["checkpoint"]])
            values["agent_data"] = {**values["agent_data"]}
            _texts(list(values["environment"].values()))
            if isinstance(values.get("cuda"), int):  # as it was written when there was only one
                values["cuda"] = (values["cuda"],)
            if values.get("account") is not None:
                values["account"] = Account.from_json(values["account"])
            for name in ("cpus", "cuda"):
                if values.get(name) is not None:
                    values[name] = tuple(values[name])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidJobError(f"not a valid task spec ({error!r})") from error


@dataclass(frozen=True, slots=True)
class End:
    """Request to end a task; ``reason`` is shown to users."""

    checkpoint: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of a task: its share, whether it is paused, and whether it is to end.

    An end is irreversible: removing it from the desired state does not save the task.
    """

    compute_milli: int = FULL_DEVICE_MILLI
    paused: bool = False
    end: End | None = None

    def __post_init__(self) -> None:
        if not (_is_count(self.compute_milli) and 1 <= self.compute_milli <= FULL_DEVICE_MILLI):
            raise InvalidJobError(
                f"compute_milli={self.compute_milli!r}, must be between 1 and "
                f"{FULL_DEVICE_MILLI}; pause a task to allocate it nothing"
            )

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for ``desired_state.json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> DesiredState:
        """Read the object that :meth:`to_json` returns.

        Raises
        ------
        InvalidJobError
            It is not such an object.
        """
        try:
            end = row["end"]
            if end is not None:
                end = End(_flag(end["checkpoint"]), *_texts([end["reason"]]))
            return cls(row["compute_milli"], _flag(row["paused"]), end)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidJobError(f"not a valid desired state of a task ({error!r})") from error


@dataclass(frozen=True, slots=True)
class ShimState:
    """State of a shim and of the job's first process.

    Attributes
    ----------
    shim_pid, job_pid : int or None
        ``job_pid`` is None until the process exists.
    job_start : int or None
        Start of that process, in clock ticks since boot; together with its id it is unique.
    started_boottime_s : float
        When the shim began to start the job.
    enforcement : str
        How the share is enforced: "cgroup v1" or "cgroup v2", either with " weight", "mps",
        "duty cycle" or "free".
    """

    shim_pid: int
    job_pid: int | None
    job_start: int | None
    started_boottime_s: float
    boot_id: str
    enforcement: str

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ShimState | None:
        """Read a JSON object; return None if it is not valid."""
        kinds = {
            "shim_pid": int, "job_pid": int | None, "job_start": int | None,
            "started_boottime_s": int | float, "boot_id": str, "enforcement": str,
        }  # fmt: skip
        return cls(**{name: row[name] for name in kinds}) if _has_types(row, kinds) else None


ENDED, LEASE_OVER, OUT_OF_MEMORY = "ended", "lease", "out of memory"
TERMINATED, NO_START = "terminated", "could not start"


@dataclass(frozen=True, slots=True)
class TaskExit:
    """Exit of a task; none of its processes runs any more.

    Attributes
    ----------
    code, signal : int or None
        Exit of the job's first process: one of them, or neither if it was never started.
    reason : str
        "" if the job ended by itself; "ended" (as requested), "lease", "terminated" (its shim was
        terminated, as at a shutdown of the machine), "out of memory", or "could not start:" and
        the reason. The job may have completed at that moment: see its progress.
    ended_at_unix_s, ended_boottime_s : float
    cpu_s : float
        Processor time of all its processes.
    peak_memory_bytes : int
        Largest observed value, of the control group or else of its largest process. At least the
        12 MB of the first process before it becomes the job.
    """

    code: int | None
    signal: int | None
    reason: str
    ended_at_unix_s: float
    ended_boottime_s: float
    cpu_s: float
    peak_memory_bytes: int

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TaskExit | None:
        """Read a JSON object; return None if it is not valid."""
        kinds = {
            "code": int | None, "signal": int | None, "reason": str, "ended_at_unix_s": int | float,
            "ended_boottime_s": int | float, "cpu_s": int | float, "peak_memory_bytes": int,
        }  # fmt: skip
        return cls(**{name: row[name] for name in kinds}) if _has_types(row, kinds) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} must be true or false")
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} must be a list of strings")
    return tuple(values)


def _has_types(row: Mapping[str, object], kinds: Mapping[str, Any]) -> bool:
    return all(
        name in row and isinstance(row[name], kind) and not isinstance(row[name], bool)
        for name, kind in kinds.items()
    ) and all(math.isfinite(value) for value in row.values() if isinstance(value, float))
