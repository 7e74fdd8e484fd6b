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
    time_s: float
    time_unix_s: float
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
    predictions : list of JSON objects
        What it was foretold, by kind of device.
    kinds : list of str
        That will do, where these are fewer than its user allows.
    reason : str
        Why that node, in a few words.
    """

    job_id: str
    attempt: int
    node: str
    allocations: list[list[int]]
    predictions: list[dict[str, Any]]
    time_s: float
    kinds: list[str] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A node said that an attempt runs."""

    job_id: str
    attempt: int
    time_s: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """An attempt is to end; ``cancel``: the job with it, else it waits again."""

    job_id: str
    attempt: int
    reason: str
    cancel: bool
    time_s: float


@dataclass(frozen=True, slots=True)
class Requeued:
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
    reason: str
    saved: float
    ran_s: float
    overflowed: bool
    failed: bool
    time_s: float
    allocations: list[list[int]] = field(default_factory=list)
    small_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over: finished, failed, cancelled or rejected.

    Attributes
    ----------
    time_s, time_unix_s : float
        When it was: its node may have been out of reach for a while since.
    allocations : list of [device, compute_milli, memory_bytes]
        What it had of its node in the end, where that is known.
    """

    job_id: str
    attempt: int
    stage: str
    reason: str
    ran_s: float
    time_s: float
    time_unix_s: float
    allocations: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Jobs that have been over for longest, and nodes long lost, are not known any more."""

    job_ids: list[str]
    nodes: list[str]
    time_s: float


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    """The journal's own name: nodes know a controller with another one by it."""

    cluster_id: str
    time_s: float


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """The longest lease that a node may go by, as far as anybody knows."""

    lease_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node said what it has; ``devices`` are [kind, memory_bytes]."""

    node: str
    agent_id: str
    devices: list[list[Any]]
    time_s: float


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A node is given no jobs any more, or some again."""

    node: str
    drained: bool
    time_s: float


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node was silent for longer than its lease and all that its jobs may take to end."""

    node: str
    time_s: float


@dataclass(frozen=True, slots=True)
class ClockSet:
    """The cluster's time is ``offset_s`` later than the clock of this boot of the machine."""

    boot_id: str
    offset_s: float
    time_s: float


Record = (
    Submitted | Placed | Started | Stopping | Requeued | Ended | Pruned
    | NodeJoined | NodeDrained | NodeLost | ClockSet | LeaseChanged | ClusterCreated
)  # fmt: skip
PRINCIPAL = "principal"  # key of a row: the client that caused the record

_KINDS: Mapping[str, type[Record]] = {
    kind.__name__: kind
    for kind in (
        Submitted, Placed, Started, Stopping, Requeued, Ended, Pruned,
        NodeJoined, NodeDrained, NodeLost, ClockSet, LeaseChanged, ClusterCreated,
    )
}  # fmt: skip


def to_json(record: Record, principal: str = "") -> dict[str, Any]:
    """Return the journal row of a record; ``principal`` caused it, "" for the controller."""
    row = {"type": type(record).__name__, **asdict(record)}
    return row | {PRINCIPAL: principal} if principal else row


def of_json(row: Mapping[str, Any]) -> Record:
    """As it was written.

    Raises
    ------
    JournalError
        It is of another version of Presage.
    """
    fields = dict(row)
    fields.pop(PRINCIPAL, None)
    kind = _KINDS.get(fields.pop("type", ""))
    if kind is not None:
        try:
            return kind(**fields)
        except TypeError:
            pass
    raise JournalError(
        f"the journal has a record {row.get('type')!r} that this version does not know; start the "
        "version of Presage that wrote it"
    )
