"""Reading of outcome logs: valid outcomes, parsed as the server parses them, and quarantined rows.

This is the only module of the pipelines that reads serving's log and protocol (decision 24).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

import pandas as pd
from google.protobuf.message import DecodeError

from presage.errors import InvalidJobError, PresageError, one_line
from presage.features.device.device import Device, Share
from presage.features.graph.op_stats import OpStats
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.identity import graph_digest, job_digest, merge_op_stats
from presage.features.job.job_description import Job, JobFeatures
from presage.features.quantities.quantity_registry import job_quantities
from presage.serving.codec.wire_outcomes import check_outcome, measured_values
from presage.serving.codec.wire_values import read_device, read_job, read_share
from presage.serving.outcomes import outcome_log
from presage.serving.outcomes.outcome_log import ReportedOutcome
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.files.log_address import LogAddress, log_name

_JOB = attrgetter(*(field.name for field in fields(Job)))
_MEMORY = attrgetter(*(field.name for field in fields(MemoryEstimate)))

UNREADABLE, INVALID, TWICE = "unreadable", "invalid", "two outcomes of one key"
WITHDRAWN = "withdrawn"

# An earlier time (before 2001) is not a Unix time.
LEAST_UNIX_S = 1e9

KnownDevice = Callable[[str], Device | None]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row of a log that is not used for training, with the reason."""

    log: str
    position: int
    idempotency_key: str
    reported_by: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """A job as one client described it, under the id that equal jobs share.

    ``name`` is a digest of the description, ``version`` that of the framework.
    """

    features: JobFeatures
    name: str
    version: str


@dataclass(frozen=True)
class Reported:
    """Outcomes of all logs, without duplicates.

    Attributes
    ----------
    jobs : list of ReportedJob
    devices : mapping of str to Device
        By the digest of the data sheet.
    rows : DataFrame
        One row per outcome: ``log``, ``position``, the columns of the table ``outcomes`` that a
        report contains, ``job`` (position in ``jobs``) and ``colocated_jobs`` (for each co-located
        job its position, and the fraction and mode of its share).
    duplicates : int
        Rows that repeat another one, as when a report is sent to two replicas.
    """

    jobs: list[ReportedJob]
    devices: dict[str, Device]
    rows: pd.DataFrame
    quarantined: list[Quarantined]
    duplicates: int


def read_logs(
    logs: Sequence[LogAddress],
    known_device: KnownDevice,
    known_jobs: Mapping[str, JobFeatures],
) -> Reported:
    """Read the outcomes of logs that servers may be appending to.

    Parameters
    ----------
    known_device : callable
        Returns the device of a kind that was reported without its data sheet.
    known_jobs : mapping of str to JobFeatures
        Jobs that campaigns measured, by :func:`job_digest`; they keep their names.

    Raises
    ------
    OutcomeLogError
        A log is missing, or cannot be read.
    """
    reading = _Reading(known_device, known_jobs)
    by_key: dict[str, list[_Row]] = {}
    withdrawn = {key for log in logs for _, key in outcome_log.withdrawn_keys(log)}
    for log in logs:
        for reported in outcome_log.read_outcomes(log):
            row = reading.row(log_name(log), reported)
            by_key.setdefault(reported.idempotency_key, []).append(row)
    duplicates = 0
    rows: list[tuple[Any, ...]] = []
    quarantined: list[Quarantined] = []
    for same_key in by_key.values():
        if len({row.digest for row in same_key}) > 1:
            quarantined += [row.quarantined(TWICE, _conflict_reason(same_key)) for row in same_key]
            continue
        first = min(same_key, key=lambda row: (row.reported.received_at_unix_s, row.place))
        duplicates += len(same_key) - 1
        if first.reported.idempotency_key in withdrawn:
            quarantined.append(first.quarantined(WITHDRAWN, "by `presage outcomes withdraw`"))
        elif first.fault is None:
            rows.append(first.columns)
        else:
            quarantined.append(first.quarantined(*first.fault))
    frame = pd.DataFrame.from_records(rows, columns=[*_COLUMNS, *_reported_columns().values()])
    return Reported(reading.jobs, reading.devices, frame, quarantined, duplicates)


_COLUMNS = (
    "log", "position", "idempotency_key", "reported_by", "release_id", "measured_at_s",
    "received_at_s", "job", "reported_job_id", "iterations", "versions", "machine", "share",
    "sharing_mode", "failure", "colocated_jobs",
)  # fmt: skip


def _reported_columns() -> dict[str, str]:
    """Return the column of each quantity that a report may hold, by forecast field."""
    return {name: quantity.column for name, quantity in job_quantities().items()}


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a log without its message: its columns, or the violated rule and the reason."""

    log: str
    reported: ReportedOutcome
    digest: bytes
    columns: tuple[Any, ...] = ()
    fault: tuple[str, str] | None = None

    @property
    def place(self) -> tuple[str, str, int]:
        return self.reported.reported_by, self.log, self.reported.position

    def quarantined(self, rule: str, reason: str) -> Quarantined:
        row = self.reported
        return Quarantined(
            self.log, row.position, row.idempotency_key, row.reported_by, rule, one_line(reason)
        )


class _Reading:
    """Parser of log rows that reads a repeated job or device only once."""

    def __init__(self, known_device: KnownDevice, known_jobs: Mapping[str, JobFeatures]) -> None:
        self.jobs: list[ReportedJob] = []
        self.devices: dict[str, Device] = {}
        self._known_device, self._known_jobs = known_device, known_jobs
        self._job_places: dict[bytes, int] = {}
        self._graphs: dict[str, tuple[OpStats, ...]] = {}
        self._machines: dict[bytes, str] = {}
        self._measurable = tuple(_reported_columns())

    def row(self, log: str, reported: ReportedOutcome) -> _Row:
        """Parse a row of a log; an unusable row has a fault."""
        message = reported.message
        reported = replace(reported, message=b"")  # those of a million rows take gigabytes
        try:
            outcome = pb.Outcome.FromString(message)
        except DecodeError:
            digest = hashlib.sha256(message).digest()
            fault = (UNREADABLE, "its bytes are not a presage.v1.Outcome")
            return _Row(log, reported, digest, fault=fault)
        # Serialize in a fixed order: a replica of another version may order fields differently.
        digest = hashlib.sha256(outcome.SerializeToString(deterministic=True)).digest()
        try:
            columns = self._columns(log, reported, outcome)
        except PresageError as error:
            return _Row(log, reported, digest, fault=(INVALID, str(error)))
        return _Row(log, reported, digest, columns)

    def _columns(self, log: str, reported: ReportedOutcome, outcome: pb.Outcome) -> tuple[Any, ...]:
        """Return the values of ``Reported.rows``, in the order of its columns."""
        check_outcome(outcome, self._known_device, "outcome")
        if outcome.idempotency_key != reported.idempotency_key:
            raise InvalidJobError(
                "the row's key is not the outcome's own; write to the log with ReportOutcomes only"
            )
        received_at_s = reported.received_at_unix_s
        if not (math.isfinite(received_at_s) and received_at_s >= 0):
            raise InvalidJobError(f"received_at_unix_s={received_at_s}, must be a Unix time")
        of_device = read_share(outcome.device, "outcome.device")
        share = _share(outcome, of_device, "outcome")
        reported_job_id, iterations = outcome.job.job_id, outcome.job.iterations
        colocated_jobs = []
        for i, row in enumerate(outcome.colocated_jobs):
            where = f"outcome.colocated_jobs[{i}]"
            its = _share(row, of_device, where)
            colocated_jobs.append((self._job(row.job, where), its.fraction, its.mode))
        job = self._job(outcome.job, "outcome")
        finished_at_s = outcome.finished_at_unix_s
        measured = measured_values(outcome)
        is_plausible = LEAST_UNIX_S <= finished_at_s <= received_at_s
        return (
            log, reported.position, outcome.idempotency_key, sys.intern(reported.reported_by),
            sys.intern(outcome.release_id), finished_at_s if is_plausible else received_at_s,
            received_at_s, job, reported_job_id, iterations, self.jobs[job].version,
            self._machine(outcome.device), share.fraction, sys.intern(share.mode),
            sys.intern(outcome.failure), colocated_jobs, *map(measured.get, self._measurable),
        )  # fmt: skip

    def _job(self, row: pb.Job, where: str) -> int:
        """Return the position of a parsed job; the name from its client is dropped."""
        row.job_id = ""
        key = hashlib.sha256(row.SerializeToString(deterministic=True)).digest()
        if key not in self._job_places:
            self._job_places[key] = len(self.jobs)
            try:
                self.jobs.append(self._reported_job(read_job(row, f"{where}.job")))
            except PresageError:
                del self._job_places[key]
                raise
        return self._job_places[key]

    def _reported_job(self, features: JobFeatures) -> ReportedJob:
        version = features.job.framework_version
        op_stats = merge_op_stats(features.op_stats)
        graph = graph_digest(op_stats)
        op_stats = self._graphs.setdefault(graph, op_stats)  # keep one of equal objects
        digest = job_digest(features, graph)
        known = self._known_jobs.get(digest)
        job = replace(
            features.job if known is None else known.job,
            job_id=f"reported/{digest}" if known is None else known.job.job_id,
            graph_digest=graph,
            framework_version="",
        )
        described = replace(features if known is None else known, job=job, op_stats=op_stats)
        name = json.dumps([_JOB(job), described.parameters, _MEMORY(described.memory)])
        return ReportedJob(described, name, f"{job.framework}={version}" if version else "")

    def _machine(self, row: pb.Device) -> str:
        """Return the digest of a device's data sheet, the key in ``devices``."""
        row.ClearField("share")
        key = row.SerializeToString(deterministic=True)
        if key not in self._machines:
            device = read_device(row, self._known_device, "outcome.device")
            machine = sheet_digest(device)
            self.devices[machine], self._machines[key] = device, machine
        return self._machines[key]


def sheet_digest(device: Device) -> str:
    """Return the digest of a data sheet: equal for equal numbers, integer or not."""
    sheet = [
        device.kind,
        *map(float, (device.compute_capability, device.memory_bytes, device.cores)),
        *map(float, (device.memory_bandwidth_bytes_per_s, device.op_overhead_s)),
        float(device.context_bytes),
        sorted((name, float(peak)) for name, peak in device.peak_flops_per_s.items()),
    ]
    return "sheet " + hashlib.sha256(json.dumps(sheet).encode()).hexdigest()[:12]


def _share(row: pb.Outcome | pb.Outcome.ColocatedJob, of_device: Share, where: str) -> Share:
    return read_share(row, where) if row.HasField("share") else of_device


def _conflict_reason(same_key: Sequence[_Row]) -> str:
    places = sorted(f"{row.reported.position} of {row.log}" for row in same_key)
    return f"its key has different outcomes, at {', '.join(places)}"
