"""Whole requests, both ways: jobs and devices once each, referred to by position.

What is wrong with one job, device or share concerns the rows that it is part of; the others are
answered. The limits here and in :mod:`presage.serving.codec.wire` bound what one request may cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import numpy as np

from presage.errors import InvalidJobError, PresageError, without_frames
from presage.features.arrays import Array, Ints, Mask
from presage.features.colocation import Colocation
from presage.features.columns.placement_table import PlacementTable
from presage.features.device.device import Device, Share
from presage.features.device.device_table import DEVICE_VALUES, GIB, device_table
from presage.features.job.job import JobFeatures
from presage.features.placement import Placement
from presage.serving.codec.wire import (
    check_text,
    read_device,
    read_share,
    write_device,
    write_job,
    write_share,
)
from presage.serving.codec.wire_jobs import read_jobs
from presage.serving.predictor.forecasts import DEFAULT_COVERAGE
from presage.serving.v1 import prediction_pb2 as pb

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Of 16 KiB, as HTTP/2 begins with, a message of a thousand feature rows has fifty frames.
FRAME_BYTES = 1024 * 1024
MAX_ROWS = 4096  # placements, or members of all co-locations
MAX_MEMBERS = 64
MAX_LEVELS = 16
OPS_A_ROW = 32  # of most jobs
# Features cost about 0.1 us for each row's each operator row.
MAX_OP_ROW_VISITS = 1_000_000

_MOST_HINTS = 8  # to kinds that are not known: finding what is like one takes a while

Request = pb.PredictRequest | pb.PredictInterferenceRequest
Row = pb.Placement | pb.Colocation.Member
T = TypeVar("T")
Numbers = TypeVar("Numbers", Ints, Array)


class Devices(Protocol):
    """Devices that can be named by kind: a predictor's."""

    def known_device(self, kind: str) -> Device | None:
        """Device of that kind, None where there is none."""
        ...

    def nearest_kind(self, kind: str) -> str:
        """What to say of a kind that is not known."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ParsedRequest:
    """What a request asks for.

    Attributes
    ----------
    table : PlacementTable
        Placements, or members of co-locations one after another, of all rows without an error.
    rows : int
        Placements or co-locations, with those that have one.
    errors : mapping of int to PresageError
        By placement or co-location.
    sizes : ndarray of int
        Members of each co-location without an error; 1 for a placement.
    """

    table: PlacementTable
    rows: int
    errors: Mapping[int, PresageError]
    sizes: Ints

    def without(self, invalid: Mapping[int, PresageError]) -> tuple[ParsedRequest, Mask]:
        """What is left when some of the table's rows have an error too; and which rows those are.

        The neighbours of such a row go with it.
        """
        good = np.setdiff1d(np.arange(self.rows), list(self.errors))
        group = np.repeat(np.arange(len(self.sizes)), self.sizes)
        stays = np.ones(len(self.sizes), dtype=np.bool_)
        errors = dict(self.errors)
        for row, error in sorted(invalid.items(), reverse=True):
            stays[group[row]] = False
            errors[int(good[group[row]])] = error
        kept = stays[group]
        return ParsedRequest(self.table.rows(kept), self.rows, errors, self.sizes[stays]), kept

    def capacities_bytes(self) -> list[float]:
        """Memory of each co-location's device."""
        first = np.cumsum(self.sizes) - self.sizes
        memory_gb = self.table.devices.values[:, DEVICE_VALUES.index("memory_gb")]
        bytes_of_each: list[float] = (memory_gb[self.table.device[first]] * GIB).tolist()
        return bytes_of_each


def write_predict(
    placements: Sequence[Placement], coverage: float, levels: Sequence[float] = ()
) -> pb.PredictRequest:
    """A request for placements; a job or device that occurs again is sent once."""
    jobs: Positions[JobFeatures] = Positions()
    devices: Positions[Device] = Positions()
    rows = [
        pb.Placement(
            job_index=jobs.of(placement.job),
            device_index=devices.of(placement.device),
            share=write_share(placement.share),
        )
        for placement in placements
    ]
    return pb.PredictRequest(
        jobs=[write_job(job) for job in jobs.values],
        devices=[write_device(device) for device in devices.values],
        placements=rows,
        coverage=coverage,
        levels=levels,
    )


def count_predict(request: pb.PredictRequest) -> int:
    """Rows that a request asks for.

    Raises
    ------
    InvalidJobError
        None, or more than are answered at once.
    """
    rows = len(request.placements) or len(request.jobs) * len(request.devices)
    return _checked_rows(rows, request)


def predict_work(request: pb.PredictRequest, rows: int) -> int:
    """What a request of so many rows takes, in rows of a job of ``OPS_A_ROW`` operators."""
    ops = [len(job.op_stats) for job in request.jobs]
    visits = max(ops, default=0) * rows if request.placements else sum(ops) * len(request.devices)
    return max(rows, visits // OPS_A_ROW)


def interference_work(request: pb.PredictInterferenceRequest, rows: int) -> int:
    """The same; members meet each other."""
    visits = max((len(job.op_stats) for job in request.jobs), default=0) * rows
    pairs = sum(len(row.members) ** 2 for row in request.colocations)
    return max(rows, pairs, visits // OPS_A_ROW)


def read_predict(request: pb.PredictRequest, devices: Devices) -> ParsedRequest:
    """What is asked for; without placements, every job on the device's share of every device.

    Raises
    ------
    InvalidJobError
        The request as a whole is too large. Everything else is an error of a row, which names
        the place in the request, what is wrong there, and how to mend it.
    """
    tables = _Tables(request, devices)
    errors: dict[int, PresageError] = {}
    if not request.placements:
        return tables.everywhere()
    rows: list[_Where] = []
    for i, row in enumerate(request.placements):
        try:
            rows.append(tables.where(row, row.device_index, f"placements[{i}]"))
        except PresageError as error:
            errors[i] = without_frames(error)
    table = tables.table(rows)
    return ParsedRequest(table, len(request.placements), errors, np.ones(len(table), dtype=np.intp))


def write_predict_interference(
    colocations: Sequence[Colocation], coverage: float, levels: Sequence[float] = ()
) -> pb.PredictInterferenceRequest:
    """A request for co-locations; a job or device that occurs again is sent once."""
    jobs: Positions[JobFeatures] = Positions()
    devices: Positions[Device] = Positions()
    rows = [
        pb.Colocation(
            device_index=devices.of(colocation.device),
            members=[
                pb.Colocation.Member(job_index=jobs.of(job), share=write_share(share))
                for job, share in zip(colocation.members, colocation.shares, strict=True)
            ],
        )
        for colocation in colocations
    ]
    return pb.PredictInterferenceRequest(
        jobs=[write_job(job) for job in jobs.values],
        devices=[write_device(device) for device in devices.values],
        colocations=rows,
        coverage=coverage,
        levels=levels,
    )


def count_predict_interference(request: pb.PredictInterferenceRequest) -> int:
    """Members that a request asks for; raises as :func:`count_predict`."""
    if not request.colocations:
        raise InvalidJobError("colocations is empty; send at least one")
    # At least a row for each: one without members is refused, but not for nothing.
    rows = sum(max(1, len(row.members)) for row in request.colocations)
    return _checked_rows(rows, request)


def read_predict_interference(
    request: pb.PredictInterferenceRequest, devices: Devices
) -> ParsedRequest:
    """Members of co-locations; an error of one is its co-location's. Raises as for placements."""
    tables = _Tables(request, devices)
    errors: dict[int, PresageError] = {}
    rows: list[_Where] = []
    sizes: list[int] = []
    for i, colocation in enumerate(request.colocations):
        try:
            members = tables.members(colocation, f"colocations[{i}]")
        except PresageError as error:
            errors[i] = without_frames(error)
        else:
            rows += members
            sizes.append(len(members))
    table = tables.table(rows)
    return ParsedRequest(table, len(request.colocations), errors, np.array(sizes, dtype=np.intp))


def read_quantile_selection(request: Request) -> tuple[float, Sequence[float]]:
    """Coverage and levels that are asked for."""
    if len(request.levels) > MAX_LEVELS:
        raise InvalidJobError(
            f"levels has {len(request.levels)} entries, at most {MAX_LEVELS} are answered"
        )
    coverage = request.coverage if request.HasField("coverage") else DEFAULT_COVERAGE
    return coverage, request.levels


def read_device_kinds(request: pb.GetReleaseRequest) -> list[str]:
    """Kinds whose data sheets are asked for; none means all."""
    if len(request.device_kinds) > MAX_ROWS:
        raise InvalidJobError(
            f"device_kinds has {len(request.device_kinds)} entries, at most {MAX_ROWS} are taken; "
            "split it"
        )
    for i, kind in enumerate(request.device_kinds):
        check_text(kind, f"device_kinds[{i}]")
    return list(request.device_kinds)


def find_kinds(kinds: Sequence[str], devices: Devices) -> list[Device]:
    """Devices of those kinds.

    Raises
    ------
    UnknownDeviceError
        One is not known. The error names its place, and does not repeat it.
    """
    rows = [pb.Device(kind=kind) for kind in kinds]
    return [
        read_device(row, devices.known_device, f"device_kinds[{i}]", nearest=devices.nearest_kind)
        for i, row in enumerate(rows)
    ]


def _checked_rows(rows: int, request: Request) -> int:
    if rows > MAX_ROWS:
        raise InvalidJobError(
            f"the request asks for {rows} rows, at most {MAX_ROWS} are answered at once; split it"
        )
    for name in ("jobs", "devices"):
        if not 1 <= len(getattr(request, name)) <= MAX_ROWS:
            raise InvalidJobError(
                f"{name} has {len(getattr(request, name))} entries, must have 1 to {MAX_ROWS}"
            )
    return rows


_Where = tuple[int, int, float]  # positions of a job and a device in their tables, and the share


class _Tables:
    """A request's jobs and devices, as far as they are not refused."""

    def __init__(self, request: Request, known: Devices) -> None:
        jobs = read_jobs(request.jobs)
        self._jobs, self._job_at, self._job_errors = jobs.table, jobs.places, jobs.errors
        devices: list[Device] = []
        self._device_errors: dict[int, PresageError] = {}
        self._shares: list[Share] = []  # of every device in the request
        for i, row in enumerate(request.devices):
            try:
                share = read_share(row, f"devices[{i}]") if row.HasField("share") else Share()
                nearest = known.nearest_kind if len(self._device_errors) < _MOST_HINTS else None
                devices.append(
                    read_device(row, known.known_device, f"devices[{i}]", nearest=nearest)
                )
            except PresageError as error:
                self._device_errors[i] = without_frames(error)
                share = Share()
            self._shares.append(share)
        self._devices = device_table(devices)
        self._device_at = _positions(len(request.devices), self._device_errors)

    def everywhere(self) -> ParsedRequest:
        """Every job on every device."""
        jobs, devices = len(self._job_at), len(self._device_at)
        shares = np.array([share.fraction for share in self._shares])
        table = PlacementTable(
            self._jobs, self._devices, self._job_at.repeat(devices),
            _again(self._device_at, jobs), _again(shares, jobs),
        )  # fmt: skip
        errors: dict[int, PresageError] = {}
        if self._job_errors or self._device_errors:
            good = (table.job >= 0) & (table.device >= 0)
            errors = {
                row: self._job_errors.get(row // devices) or self._device_errors[row % devices]
                for row in np.flatnonzero(~good).tolist()
            }
            table = table.rows(good)
        _check_work(table)
        return ParsedRequest(table, jobs * devices, errors, np.ones(len(table), dtype=np.intp))

    def where(self, row: Row, device_index: int, at: str) -> _Where:
        """Where a placement or member is to be; raises what is wrong with it."""
        job, device = row.job_index, device_index
        _check_index(job, len(self._job_at), f"{at}.job_index", "jobs")
        _check_index(device, len(self._device_at), f"{at}.device_index", "devices")
        for error in (self._job_errors.get(job), self._device_errors.get(device)):
            if error is not None:
                raise error
        share = read_share(row, at) if row.HasField("share") else self._shares[device]
        return int(self._job_at[job]), int(self._device_at[device]), share.fraction

    def members(self, colocation: pb.Colocation, at: str) -> list[_Where]:
        """Where the members of a co-location are to be."""
        if not 1 <= len(colocation.members) <= MAX_MEMBERS:
            raise InvalidJobError(
                f"{at}.members has {len(colocation.members)} jobs, must have 1 to {MAX_MEMBERS}"
            )
        _check_index(colocation.device_index, len(self._device_at), f"{at}.device_index", "devices")
        return [
            self.where(member, colocation.device_index, f"{at}.members[{i}]")
            for i, member in enumerate(colocation.members)
        ]

    def table(self, rows: Sequence[_Where]) -> PlacementTable:
        """Placements at those places."""
        job, device, share = np.array(rows, dtype=np.float64).reshape(len(rows), 3).T
        table = PlacementTable(
            self._jobs, self._devices, job.astype(np.intp), device.astype(np.intp), share
        )
        _check_work(table)
        return table


class Positions(Generic[T]):
    """Values in the order they were first seen, each object once."""

    def __init__(self) -> None:
        self.values: list[T] = []
        # By identity: hashing a job of a hundred operator rows costs more than it saves. The
        # list above keeps the objects alive, so no id is used twice.
        self._positions: dict[int, int] = {}

    def of(self, value: T) -> int:
        """Position of ``value``, which is taken in when it is new."""
        position = self._positions.setdefault(id(value), len(self.values))
        if position == len(self.values):
            self.values.append(value)
        return position


def _again(row: Numbers, times: int) -> Numbers:
    """One after another, shape (times x row,); np.tile takes ten times as long for a few."""
    return cast(Numbers, np.concatenate((row,) * times))


def _positions(rows: int, errors: Mapping[int, PresageError]) -> Ints:
    """Of each row among those without an error; -1 of one that has one."""
    if not errors:
        return np.arange(rows)
    good = np.ones(rows, dtype=np.bool_)
    good[list(errors)] = False
    return np.where(good, np.cumsum(good) - 1, -1)


def _check_work(table: PlacementTable) -> None:
    visits = int(table.jobs.op_counts[table.job].sum())
    if visits > MAX_OP_ROW_VISITS:
        raise InvalidJobError(
            f"the request asks for {visits} operator rows to be looked at (those of each job, "
            f"once per prediction), at most {MAX_OP_ROW_VISITS} are; split it"
        )


def _check_index(index: int, size: int, where: str, name: str) -> None:
    if index >= size:
        raise InvalidJobError(
            f"{where}={index}, but {name} has {size} entries; positions count from 0"
        )
