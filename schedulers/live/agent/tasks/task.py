"""What a task is, what is wanted of it, and what became of it: the files of its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from presage.errors import InvalidJobError
from presage.schedulers.live.agent.isolation.account import Account

FULL_DEVICE_MILLI = 1000
BY_WEIGHT = " weight"  # how what holds a task ends, where that is no limit
FREE = "free"  # of a task that nothing holds
TERMINATE_S = 1.0  # that a task has to end when its grace is over; then it is killed
_LIMITS = ("max_processes", "max_open_files", "max_host_memory_bytes")
LOG_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One attempt at a job on this node.

    Attributes
    ----------
    command : tuple of str
        Program and arguments; the program is looked for in the ``PATH`` of ``environment``.
    folder : str
        That it works in; an absolute path.
    environment : mapping of str to str
        All that the job finds, but for the variables that Presage adds.
    checkpoint : str
        Folder of the job's checkpoints, the same for all of its attempts; an absolute path, made
        where there is none.
    cpus : tuple of int, or None
        Numbers of the processors that it may use; None for those of the agent.
    cuda : tuple of int, or None
        Numbers of its GPUs by place on the bus; None for a task that has none, and sees none.
    memory_bytes : int
        That it may take of each of its GPUs; 0 for any amount.
    grace_s : float
        That it has to write a checkpoint, when it is ended with one.
    log_bytes : int
        Above which its log is begun anew; the end of the one before is kept.
    hard : bool
        Whether its share is all that it gets, or, where that can be had, what it gets when others
        want more.
    weight : int
        Of one that is not hard: how many times its share counts beside others'.
    grows : bool
        Whether it may be given more than at its start: then MPS leaves it all of its GPUs' threads,
        and unless it is hard nothing but a weight holds it.
    account : Account or None
        That the job's processes run as; None for the agent's own.
    max_processes, max_open_files, max_host_memory_bytes : int
        As :class:`presage.schedulers.live.agent.isolation.job_limits.JobLimits` has them; 0 for no
        limit.
    groups : bool
        Whether control groups may hold it, where this machine has any for us.
    more : mapping
        A JSON object of the agent's own.
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
    hard: bool = True
    weight: int = 1
    grows: bool = False
    account: Account | None = None
    max_processes: int = 0
    max_open_files: int = 0
    max_host_memory_bytes: int = 0
    groups: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for fault in (self._fault_of_job(), self._fault_of_process(), self._fault_of_limits()):
            if fault:
                raise InvalidJobError(f"task of job {self.job_id!r}: {fault}")

    def _fault_of_job(self) -> str:
        if not self.job_id:
            return "job_id must not be empty"
        if not _is_count(self.attempt):
            return f"attempt={self.attempt!r}, must be an integer >= 0"
        return ""

    def _fault_of_process(self) -> str:
        if not self.command or not self.command[0]:
            return f"command={self.command!r} names no program"
        if any("\0" in text for text in (*self.command, self.folder, self.checkpoint)):
            return "a zero byte in its command or folders"
        for name in ("folder", "checkpoint"):
            if not getattr(self, name).startswith("/"):
                return f"{name}={getattr(self, name)!r}, must be an absolute path"
        for key, value in self.environment.items():
            if not key or "=" in key or "\0" in key + value:
                return f"no environment can hold {key!r}={value!r}"
        return ""

    def _fault_of_limits(self) -> str:
        if self.cpus is not None and (not self.cpus or not all(map(_is_count, self.cpus))):
            return f"cpus={self.cpus!r}, must be numbers of processors, at least one; None for any"
        if self.cuda is not None and (not self.cuda or not all(map(_is_count, self.cuda))):
            return f"cuda={self.cuda!r}, must be numbers of GPUs, at least one; None for none"
        for name in ("memory_bytes", *_LIMITS):
            if not _is_count(getattr(self, name)):
                return f"{name}={getattr(self, name)!r}, must be an integer >= 0; 0 for any amount"
        if not (math.isfinite(self.grace_s) and self.grace_s >= 0):
            return f"grace_s={self.grace_s}, must be a finite number >= 0"
        for name in ("log_bytes", "weight"):
            if not (_is_count(getattr(self, name)) and getattr(self, name) > 0):
                return f"{name}={getattr(self, name)!r}, must be an integer >= 1"
        return ""

    def to_json(self) -> dict[str, object]:
        """As ``spec.json`` has it."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "command": list(self.command),
            "environment": dict(self.environment),
            "cpus": None if self.cpus is None else list(self.cpus),
            "cuda": None if self.cuda is None else list(self.cuda),
            "account": None if self.account is None else self.account.to_json(),
            "more": dict(self.more),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> TaskSpec:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        InvalidJobError
            It is not such an object.
        """
        try:
            values = {name: said[name] for name in cls.__dataclass_fields__ if name in said}
            values["command"] = _texts(values["command"])
            _texts([values["job_id"], values["folder"], values["checkpoint"]])
            values["more"] = {**values["more"]}
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
            raise InvalidJobError(f"not the spec of a task ({error!r})") from error


@dataclass(frozen=True, slots=True)
class End:
    """That a task is to end; ``why`` is for people."""

    checkpoint: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task is to do: with what share, whether at all, and whether to end.

    An end is for good: a task that is being ended is not saved by wanting none any more.
    """

    compute_milli: int = FULL_DEVICE_MILLI
    paused: bool = False
    end: End | None = None

    def __post_init__(self) -> None:
        if not (_is_count(self.compute_milli) and 1 <= self.compute_milli <= FULL_DEVICE_MILLI):
            raise InvalidJobError(
                f"compute_milli={self.compute_milli!r}, must be within 1 and "
                f"{FULL_DEVICE_MILLI}; to give a task nothing, pause it"
            )

    def to_json(self) -> dict[str, object]:
        """As ``wanted.json`` has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Wanted:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        InvalidJobError
            It is not such an object.
        """
        try:
            end = said["end"]
            if end is not None:
                end = End(_flag(end["checkpoint"]), *_texts([end["why"]]))
            return cls(said["compute_milli"], _flag(said["paused"]), end)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidJobError(f"not what is wanted of a task ({error!r})") from error


@dataclass(frozen=True, slots=True)
class ShimState:
    """What a shim says of itself and the job's first process.

    Attributes
    ----------
    shim_pid, job_pid : int or None
        ``job_pid`` is None until there is one.
    job_start : int or None
        When that process was started, in clock ticks since the machine was: no other process has
        both numbers.
    started_boottime_s : float
        When the shim set out to start the job.
    compute : str
        What holds the job to its share: "cgroup v1" or "cgroup v2", either with " weight", "mps",
        "duty cycle", "free".
    """

    shim_pid: int
    job_pid: int | None
    job_start: int | None
    started_boottime_s: float
    boot_id: str
    compute: str

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> ShimState | None:
        """None where the object is something else."""
        kinds = {
            "shim_pid": int, "job_pid": int | None, "job_start": int | None,
            "started_boottime_s": int | float, "boot_id": str, "compute": str,
        }  # fmt: skip
        return cls(**{name: said[name] for name in kinds}) if _all_are(said, kinds) else None


ENDED, LEASE_OVER, OUT_OF_MEMORY = "ended", "lease", "out of memory"
TERMINATED, NO_START = "terminated", "could not start"


@dataclass(frozen=True, slots=True)
class TaskExit:
    """How a task ended; nothing of it runs any more.

    Attributes
    ----------
    code, signal : int or None
        One of them of the job's first process; both are None if there never was one.
    why : str
        "" where the job ended by itself; "ended" (it was wanted), "lease", "terminated" (somebody
        else ended its shim, as a machine that shuts down), "out of memory", or "could not start:"
        and the reason. The job may also have come to its end just then: see its progress.
    ended_at_unix_s, ended_boottime_s : float
    cpu_s : float
        Processor time of all its processes.
    peak_memory_bytes : int
        The most that was seen; of a cgroup's processes together, else of its largest process. Never
        below the 12 MB that the first one has before it becomes the job.
    """

    code: int | None
    signal: int | None
    why: str
    ended_at_unix_s: float
    ended_boottime_s: float
    cpu_s: float
    peak_memory_bytes: int

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> TaskExit | None:
        """None where the object is something else."""
        kinds = {
            "code": int | None, "signal": int | None, "why": str, "ended_at_unix_s": int | float,
            "ended_boottime_s": int | float, "cpu_s": int | float, "peak_memory_bytes": int,
        }  # fmt: skip
        return cls(**{name: said[name] for name in kinds}) if _all_are(said, kinds) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} is no list of texts")
    return tuple(values)


def _all_are(said: Mapping[str, object], kinds: Mapping[str, Any]) -> bool:
    return all(
        name in said and isinstance(said[name], kind) and not isinstance(said[name], bool)
        for name, kind in kinds.items()
    ) and all(math.isfinite(value) for value in said.values() if isinstance(value, float))
