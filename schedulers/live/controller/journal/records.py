"""What the controller's journal says: everything that it must not forget, one record a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from presage.errors import JournalError


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was taken.

    Attributes
    ----------
    job : mapping
        The protocol's message as JSON.
    owner : str
        Name of the caller that submitted it; "" before callers were recorded.
    run_as : str
        Account of the nodes that it runs as; "" for the agent's own.
    size_bytes : int
        Of the message, for its owner's quota.
    """

    job_id: str
    job: Mapping[str, Any]
    at_s: float
    at_unix_s: float
    owner: str = ""
    run_as: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """An attempt of a job was given to a node.

    Attributes
    ----------
    allocations : list of [device, compute_milli, memory_bytes]
        Devices of the node, from 0, as the controller foresees them.
    told : list of JSON objects
        What it was foretold, by kind of device.
    kinds : list of str
        That will do, where these are fewer than its user allows.
    why : str
        Why that node, in a few words.
    """

    job_id: str
    attempt: int
    node: str
    allocations: list[list[int]]
    told: list[dict[str, Any]]
    at_s: float
    kinds: list[str] = field(default_factory=list)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A node said that an attempt runs."""

    job_id: str
    attempt: int
    at_s: float
    at_unix_s: float


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """An attempt is to end; ``cancel``: the job with it, else it waits again."""

    job_id: str
    attempt: int
    why: str
    cancel: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class Returned:
    """An attempt is over, and its job waits again.

    Attributes
    ----------
    saved : float
        Part of the job that its last checkpoint holds.
    overflowed, failed : bool
        It ran out of memory; it failed by itself.
    allocations : list of [device, compute_milli, memory_bytes]
        What it had of its node when it was sent away: it may go on there.
    small_bytes : int
        Memory of the device that it ran out of by itself.
    """

    job_id: str
    attempt: int
    why: str
    saved: float
    ran_s: float
    overflowed: bool
    failed: bool
    at_s: float
    allocations: list[list[int]] = field(default_factory=list)
    small_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job is over: finished, failed, cancelled or rejected.

    Attributes
    ----------
    at_s, at_unix_s : float
        When it was: its node may have been out of reach for a while since.
    allocations : list of [device, compute_milli, memory_bytes]
        What it had of its node in the end, where that is known.
    """

    job_id: str
    attempt: int
    stage: str
    why: str
    ran_s: float
    at_s: float
    at_unix_s: float
    allocations: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Jobs that have been over for longest, and nodes long lost, are not known any more."""

    job_ids: list[str]
    nodes: list[str]
    at_s: float


@dataclass(frozen=True, slots=True)
class Founded:
    """The journal's own name: nodes know a controller with another one by it."""

    cluster_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Leased:
    """The longest lease that a node may go by, as far as anybody knows."""

    lease_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node said what it has; ``devices`` are [kind, memory_bytes]."""

    node: str
    agent_id: str
    devices: list[list[Any]]
    at_s: float


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A node is given no jobs any more, or some again."""

    node: str
    drained: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node was silent for longer than its lease and all that its jobs may take to end."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class ClockSet:
    """The cluster's time is ``offset_s`` later than the clock of this boot of the machine."""

    boot_id: str
    offset_s: float
    at_s: float


Record = (
    Submitted | Placed | Started | Withdrawn | Returned | JobResult | Forgotten
    | NodeJoined | NodeDrained | NodeLost | ClockSet | Leased | Founded
)  # fmt: skip
BY = "by"  # of a row: the caller that caused the record

_KINDS: Mapping[str, type[Record]] = {
    kind.__name__: kind
    for kind in (
        Submitted, Placed, Started, Withdrawn, Returned, JobResult, Forgotten,
        NodeJoined, NodeDrained, NodeLost, ClockSet, Leased, Founded,
    )
}  # fmt: skip


def to_json(record: Record, by: str = "") -> dict[str, Any]:
    """Return the row that a journal keeps; ``by`` is the caller that caused it, "" for none."""
    row = {"what": type(record).__name__, **asdict(record)}
    return row | {BY: by} if by else row


def of_json(row: Mapping[str, Any]) -> Record:
    """As it was written.

    Raises
    ------
    JournalError
        It is of another version of Presage.
    """
    fields = dict(row)
    fields.pop(BY, None)
    kind = _KINDS.get(fields.pop("what", ""))
    if kind is not None:
        try:
            return kind(**fields)
        except TypeError:
            pass
    raise JournalError(
        f"the journal has a record {row.get('what')!r} that this version does not know; start the "
        "version of Presage that wrote it"
    )
