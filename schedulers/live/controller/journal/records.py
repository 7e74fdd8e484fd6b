"""Records of the controller's journal: one per change of jobs, nodes, clock and leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from presage.errors import JournalError


@dataclass(frozen=True, slots=True)
class Submitted:
    """Submission of a job.

    Attributes
    ----------
    job : mapping
        The protocol's message as JSON.
    owner : str
        Name of the client that submitted it; "" if clients were not recorded.
    run_as : str
        Account of the nodes that it runs as; "" for the agent's own.
    size_bytes : int
        Size of the message, for the owner's quota.
    traceparent : str
        W3C trace context of the submission; "" if it is not traced.
    """

    job_id: str
    job: Mapping[str, Any]
    time_s: float
    time_unix_s: float
    owner: str = ""
    run_as: str = ""
    size_bytes: int = 0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """Assignment of an attempt of a job to a node.

    Attributes
    ----------
    allocations : list of [device, compute_milli, memory_bytes]
        Devices of the node, from 0, as the controller planned them.
    predictions : list of JSON objects
        Predictions of the job, one per kind of device.
    kinds : list of str
        Suitable kinds of devices; empty if all kinds that its user allows are suitable.
    reason : str
        Why this node was chosen, in a few words.
    members : list of [number, node, device, compute_milli, memory_bytes]
        Workers of an elastic job, which has no node and allocations.
    """

    job_id: str
    attempt: int
    node: str
    allocations: list[list[int]]
    predictions: list[dict[str, Any]]
    time_s: float
    kinds: list[str] = field(default_factory=list)
    reason: str = ""
    members: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Started:
    """Report of a node that an attempt runs."""

    job_id: str
    attempt: int
    time_s: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class Resized:
    """Change of the workers of a running elastic job.

    Attributes
    ----------
    members : list of [number, node, device, compute_milli, memory_bytes]
        All workers from now on; workers of the job that are not among them are to leave.
    """

    job_id: str
    attempt: int
    members: list[list[Any]]
    reason: str
    time_s: float


@dataclass(frozen=True, slots=True)
class MemberEnded:
    """End of a worker of an elastic job, which continues with the others.

    Attributes
    ----------
    number : int
        Number of the worker.
    reason : str
        How it ended.
    finished, failed, is_late : bool
        Whether it completed the job, or failed, and that after the last step.
    overflowed : bool
        Whether it failed because it ran out of memory on a part of a device.
    """

    job_id: str
    attempt: int
    number: int
    reason: str
    finished: bool
    failed: bool
    is_late: bool
    time_s: float
    overflowed: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """Request to end an attempt; with ``cancel`` the job ends, else it waits again.

    Attributes
    ----------
    stage : str
        Stage of the job after its end; "" if it is cancelled, without time to save its state.
    """

    job_id: str
    attempt: int
    reason: str
    cancel: bool
    time_s: float
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """Hold of a job, which does not start while it lasts, or its release.

    Attributes
    ----------
    by : str
        Client that holds or releases it.
    by_admin : bool
        Whether only administrators may release it.
    """

    job_id: str
    held: bool
    by: str
    by_admin: bool
    time_s: float


@dataclass(frozen=True, slots=True)
class PriorityChanged:
    """Another priority of a job than that of its submission."""

    job_id: str
    priority: int
    time_s: float


@dataclass(frozen=True, slots=True)
class QuotaChanged:
    """Quota of a user from now on, or of all users without one; without numbers, its removal.

    Attributes
    ----------
    user : str
        "" for the default of users without a quota.
    devices, weight : float or None
        As in :class:`presage.schedulers.core.users.quota.Quota`.
    """

    user: str
    devices: float | None
    weight: float | None
    time_s: float


@dataclass(frozen=True, slots=True)
class HalfLifeChanged:
    """Half-life of the past use of users from now on."""

    half_life_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Requeued:
    """End of an attempt whose job waits again.

    Attributes
    ----------
    saved : float
        Fraction of the job in its last checkpoint.
    overflowed, failed : bool
        Whether the attempt ran out of memory, or failed.
    allocations : list of [device, compute_milli, memory_bytes]
        Its last allocations on the node, where it may resume after an eviction.
    small_bytes : int
        Memory of the exclusive device on which it ran out of memory; 0 if it did not.
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
    """End of a job: it has finished or failed, or was cancelled or rejected.

    Attributes
    ----------
    time_s, time_unix_s : float
        When it ended, which may be long before its node reports it.
    allocations : list of [device, compute_milli, memory_bytes]
        Its last allocations on the node, if known.
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
    """Removal of the jobs that ended first, and of nodes that have been lost for long."""

    job_ids: list[str]
    nodes: list[str]
    time_s: float


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    """Creation of the cluster; its id lets nodes tell controllers of other clusters apart."""

    cluster_id: str
    time_s: float


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """Longest lease that a node may currently hold."""

    lease_s: float
    time_s: float


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """Report of a node's devices, each [kind, memory_bytes].

    Attributes
    ----------
    device_ids : list of str
        Id of the hardware of each device, "" where it has none; empty if no device has one.
    """

    node: str
    agent_id: str
    devices: list[list[Any]]
    time_s: float
    device_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Start or end of draining a node.

    Attributes
    ----------
    by, reason : str
        Client that drained it, and why; "" if unknown.
    """

    node: str
    drained: bool
    time_s: float
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HealthReported:
    """Health signals of a node's devices that say something new.

    Attributes
    ----------
    signals_id, number : str, int
        Sequence of the agent's signals, and the number up to which they are recorded by this.
    signals : list of [device, source, severity, reason]
        Device of the node, from 0, and the fields of
        :class:`presage.schedulers.health.health_signal.HealthSignal`.
    """

    node: str
    signals_id: str
    number: int
    signals: list[list[Any]]
    time_s: float


@dataclass(frozen=True, slots=True)
class DeviceDrained:
    """Withdrawal of a device of a node by an operator, or its return to service.

    Attributes
    ----------
    by, reason : str
        As in :class:`NodeDrained`.
    """

    node: str
    device: int
    drained: bool
    time_s: float
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Loss of a node: no report within its lease and the time in which its jobs end."""

    node: str
    time_s: float


@dataclass(frozen=True, slots=True)
class ClockSet:
    """Offset of the cluster's time from the boot-time clock of one boot of the machine."""

    boot_id: str
    offset_s: float
    time_s: float


Record = (
    Submitted | Held | PriorityChanged | Placed | Started | Resized | MemberEnded | Stopping
    | Requeued | Ended | Pruned | NodeJoined | NodeDrained | NodeLost | HealthReported
    | DeviceDrained | ClockSet | LeaseChanged | ClusterCreated | QuotaChanged | HalfLifeChanged
)  # fmt: skip
PRINCIPAL = "principal"  # key of a row: the client that caused the record

_KINDS: Mapping[str, type[Record]] = {
    kind.__name__: kind
    for kind in (
        Submitted, Held, PriorityChanged, Placed, Started, Resized, MemberEnded, Stopping, Requeued,
        Ended, Pruned, NodeJoined, NodeDrained, NodeLost, HealthReported, DeviceDrained, ClockSet,
        LeaseChanged, ClusterCreated, QuotaChanged, HalfLifeChanged,
    )
}  # fmt: skip


def record_to_json(record: Record, principal: str = "") -> dict[str, Any]:
    """Return the journal row of a record; ``principal`` caused it, "" for the controller."""
    row = {"type": type(record).__name__, **asdict(record)}
    return row | {PRINCIPAL: principal} if principal else row


def record_from_json(row: Mapping[str, Any]) -> Record:
    """Return the record of a journal row.

    Raises
    ------
    JournalError
        The row was written by another version of Presage.
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
        f"the journal has a record of the unknown type {row.get('type')!r}; start the version of "
        "Presage that wrote it"
    )
