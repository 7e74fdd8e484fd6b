"""Submission of a job as job_submit.lua describes it, and the changes that it applies.

Both are lines ``name=value`` that end with an empty line: Lua parses them without a library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from presage.errors import InvalidRequestError

PROTOCOL = "1"
MAX_REQUEST_BYTES = 256 * 1024
UNLIMITED = "unlimited"
MAX_GPUS = 65_536
_GPUS = re.compile(r"(?:gres:)?gpu(?::(?P<kind>[a-zA-Z][\w-]*))?(?:[:=](?P<count>\d+))?")
_WHOLE = re.compile(r"\d{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What Slurm knows of a job that is being submitted; None is what the user left out.

    Attributes
    ----------
    own_minutes : int or None
        Time limit of the job without Presage, from the user or the partition; None if unlimited.
    has_own_limit : bool
        Whether ``own_minutes`` is certain. It is not for several partitions and no --time.
    has_memory : bool
        Whether the user gave --mem, --mem-per-cpu or --mem-per-gpu.
    gpus : str
        Requested GRES as Slurm writes them, all options together, such as "gres:gpu:a100:1".
    gpus_per_node : bool
        Whether ``gpus`` counts the GPUs of each node, and not all of the job.
    nodes, tasks : int
        Least number of nodes, and number of tasks.
    is_heterogeneous : bool
        Whether it is a part of a heterogeneous job.
    features : str
        Text of :mod:`presage.schedulers.slurm.feature_text`; "" if there are none.
    options : frozenset of str
        Options of ``presage slurm sbatch``: "pin-time", "pin-memory", "pin-nice", "share".
    """

    own_minutes: int | None
    has_own_limit: bool = True
    partition: str = ""
    has_time_min: bool = False
    has_memory: bool = False
    has_nice: bool = False
    gpus: str = ""
    gpus_per_node: bool = True
    nodes: int = 1
    tasks: int = 1
    is_heterogeneous: bool = False
    features: str = ""
    options: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Return the submission that a request describes.

        Raises
        ------
        InvalidRequestError
            The request is of another protocol version, or a value is missing or invalid.
        """
        if values.get("presage") != PROTOCOL:
            raise InvalidRequestError(
                f"protocol version {values.get('presage', '')!r:.20}, must be {PROTOCOL}; install "
                "job_submit.lua again with `presage slurm files`"
            )
        limit = values.get("own_limit", "")
        if limit and limit != UNLIMITED and not _WHOLE.fullmatch(limit):
            raise InvalidRequestError("own_limit is not a number of minutes")
        return cls(
            own_minutes=int(limit) if limit.isdigit() else None,
            has_own_limit=bool(limit),
            partition=values.get("partition", ""),
            has_time_min=values.get("has_time_min") == "1",
            has_memory=values.get("has_memory") == "1",
            has_nice=values.get("has_nice") == "1",
            gpus=values.get("gres", ""),
            gpus_per_node=values.get("gres_per_node") == "1",
            nodes=_number(values, "nodes"),
            tasks=_number(values, "tasks"),
            is_heterogeneous=values.get("is_heterogeneous") == "1",
            features=values.get("features", ""),
            options=frozenset(values.get("options", "").split(",")) - {""},
        )

    @property
    def is_supported(self) -> bool:
        """Whether nodes and tasks are such that the features describe the job.

        Processes on the CPUs of several nodes or tasks have no forecast.
        """
        if self.is_heterogeneous:
            return False
        return bool(self.gpus) or (self.nodes == 1 and self.tasks == 1)

    def gpu_request(self) -> tuple[str, int | None]:
        """Return the type ("" for any) and the number of all GPUs; None for other requests."""
        if not self.gpus:
            return "", 0
        match = _GPUS.fullmatch(self.gpus)
        if match is None:
            return "", None
        count = int(match["count"] or 1) * (self.nodes if self.gpus_per_node else 1)
        return match["kind"] or "", count if self.nodes <= count <= MAX_GPUS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What job_submit.lua is to change; None leaves a value unchanged."""

    time_limit_minutes: int | None = None
    memory_mib: int | None = None
    shards: int | None = None
    nice: int | None = None
    note: str = ""
    reason: str = field(default="", compare=False)  # why values were unchanged, for the log

    def lines(self) -> bytes:
        """Return the response of the bridge."""
        values = {
            "presage": PROTOCOL,
            "time_limit": self.time_limit_minutes,
            "memory_mib": self.memory_mib,
            "shards": self.shards,
            "nice": self.nice,
            "note": self.note or None,
        }
        rows = [f"{name}={value}\n" for name, value in values.items() if value is not None]
        return ("".join(rows) + "\n").encode()


def _number(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "1")
    if not _WHOLE.fullmatch(text):
        raise InvalidRequestError(f"{name} is not a number")
    return max(1, int(text))


def parse_lines(request: bytes) -> dict[str, str]:
    """Return the values of a request.

    Raises
    ------
    InvalidRequestError
        It is not lines ``name=value`` of ASCII text with an empty line at the end.
    """
    try:
        lines = request.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the request is not ASCII text") from error
    if lines[-2:] != ["", ""] or not all("=" in line for line in lines[:-2]):
        raise InvalidRequestError("the request is not lines name=value and an empty line")
    return dict(line.split("=", 1) for line in lines[:-2])
