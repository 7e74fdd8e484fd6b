"""Conversion of whole requests in both directions.

Each job and device is sent once and referenced by position. An error of a job, device or share
affects only the rows that use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import numpy as np

from presage.errors import InvalidJobError, PresageError, without_frames
from presage.features.colocation import Colocation
from presage.features.columns.placement_table import PlacementTable
from presage.features.device.device import Device, Share
from presage.features.device.device_table import DEVICE_VALUES, GIB, device_table
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.serving.codec.request_limits import (
    MAX_LEVELS,
    MAX_MEMBERS,
    MAX_OP_ROW_VISITS,
    MAX_ROWS,
    OPS_A_ROW,
)
from presage.serving.codec.wire_jobs import ReadJobs, read_jobs
from presage.serving.codec.wire_values import (
    check_text,
    read_device,
    read_share,
    write_device,
    write_job,
    write_share,
)
from presage.serving.predictor.prediction_backend import DEFAULT_COVERAGE
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.arrays import Array, Ints, Mask

_MAX_HINTS = 8  # hints for unknown kinds per request: finding the nearest kind is slow

Request = pb.PredictRequest | pb.PredictInterferenceRequest
Row = pb.Placement | pb.Colocation.Member
T = TypeVar("T")
Numbers = TypeVar("Numbers", Ints, Array)


class Devices(Protocol):
    """Devices that can be named by kind; a predictor implements it."""

    def known_device(self, kind: str) -> Device | None:
        """Return the device of that kind; None if it is unknown."""
        ...

    def similar_kinds(self, kind: str) -> str:
        """Return the hint for an unknown kind: the nearest known ones."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ParsedRequest:
    """Parsed request: a table of its valid rows and the errors of the others.

    Attributes
    ----------
    table : PlacementTable
        Placements, or members of consecutive co-locations, of all rows without an error.
    rows : int
        Number of all placements or co-locations.
    errors : mapping of int to PresageError
        Errors by placement or co-location.
    sizes : ndarray of int
        Members of each co-location without an error; 1 for a placement.
    """

    table: PlacementTable
    rows: int
    errors: Mapping[int, PresageError]
    sizes: Ints

    def without(self, invalid: Mapping[int, PresageError]) -> tuple[ParsedRequest, Mask]:
        """Return the request without invalid table rows, and the mask of the kept table rows.

        An invalid row removes its whole co-location.
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
        """Return the device memory of each co-location, in bytes."""
        first = np.cumsum(self.sizes) - self.sizes
        memory_gb = self.table.devices.values[:, DEVICE_VALUES.index("memory_gb")]
        bytes_of_each: list[float] = (memory_gb[self.table.device[first]] * GIB).tolist()
        return bytes_of_each


def write_predict(
    placements: Sequence[Placement], coverage: float, levels: Sequence[float] = ()
) -> pb.PredictRequest:
    """Return a request for placements; repeated jobs and devices are sent once."""
    jobs: Positions[JobFeatures] = Positions()
    devices: Positions[Device] = Positions()
    rows = [
        pb.Placement(
            job_index=jobs.position(placement.job),
            device_index=devices.position(placement.device),
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


def count_predict(request: pb.PredictRequest, jobs: ReadJobs | None = None) -> int:
    """Return the number of rows that a request asks for.

    ``jobs`` are its jobs if they were read before the request, which then has none.

    Raises
    ------
    InvalidJobError
        There are no rows or too many.
    """
    rows = len(request.placements) or _count_jobs(request, jobs) * len(request.devices)
    return _checked_rows(rows, request, jobs)


def predict_work(request: pb.PredictRequest, rows: int, jobs: ReadJobs | None = None) -> int:
    """Return the cost of a request, in rows of a job with ``OPS_A_ROW`` operator rows."""
    ops = _op_counts(request, jobs)
    visits = max(ops, default=0) * rows if request.placements else sum(ops) * len(request.devices)
    return max(rows, visits // OPS_A_ROW)


def interference_work(
    request: pb.PredictInterferenceRequest, rows: int, jobs: ReadJobs | None = None
) -> int:
    """Return the cost of a request for co-locations, which grows with the square of members."""
    visits = max(_op_counts(request, jobs), default=0) * rows
    pairs = sum(len(row.members) ** 2 for row in request.colocations)
    return max(rows, pairs, visits // OPS_A_ROW)


def read_predict(
    request: pb.PredictRequest, devices: Devices, jobs: ReadJobs | None = None
) -> ParsedRequest:
    """Parse a request; without placements it means every job on every device's share.

    Raises
    ------
    InvalidJobError
        The request is too large. All other errors belong to a row; they name the place in the
        request, the problem and the fix.
    """
    tables = _Tables(request, devices, jobs)
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
    """Return a request for co-locations; repeated jobs and devices are sent once."""
    jobs: Positions[JobFeatures] = Positions()
    devices: Positions[Device] = Positions()
    rows = [
        pb.Colocation(
            device_index=devices.position(colocation.device),
            members=[
                pb.Colocation.Member(job_index=jobs.position(job), share=write_share(share))
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


def count_predict_interference(
    request: pb.PredictInterferenceRequest, jobs: ReadJobs | None = None
) -> int:
    """Return the number of members that a request asks for; raise as :func:`count_predict`."""
    if not request.colocations:
        raise InvalidJobError("colocations is empty; send at least one")
    # At least one row each: rejecting a co-location without members has a cost as well.
    rows = sum(max(1, len(row.members)) for row in request.colocations)
    return _checked_rows(rows, request, jobs)


def read_predict_interference(
    request: pb.PredictInterferenceRequest, devices: Devices, jobs: ReadJobs | None = None
) -> ParsedRequest:
    """Parse a request for co-locations; an error of a member belongs to its co-location.

    Raises as :func:`read_predict`.
    """
    tables = _Tables(request, devices, jobs)
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
    """Return the requested coverage and levels."""
    if len(request.levels) > MAX_LEVELS:
        raise InvalidJobError(
            f"levels has {len(request.levels)} entries, at most {MAX_LEVELS} are answered"
        )
    coverage = request.coverage if request.HasField("coverage") else DEFAULT_COVERAGE
    return coverage, request.levels


def read_device_kinds(request: pb.GetReleaseRequest) -> list[str]:
    """Return the kinds whose data sheets are requested; an empty list means all."""
    if len(request.device_kinds) > MAX_ROWS:
        raise InvalidJobError(
            f"device_kinds has {len(request.device_kinds)} entries, at most {MAX_ROWS} are taken; "
            "split it"
        )
    for i, kind in enumerate(request.device_kinds):
        check_text(kind, f"device_kinds[{i}]")
    return list(request.device_kinds)


def find_kinds(kinds: Sequence[str], devices: Devices) -> list[Device]:
    """Return the devices of kinds.

    Raises
    ------
    UnknownDeviceError
        A kind is unknown. The error names its position and does not repeat it.
    """
    rows = [pb.Device(kind=kind) for kind in kinds]
    return [
        read_device(row, devices.known_device, f"device_kinds[{i}]", similar=devices.similar_kinds)
        for i, row in enumerate(rows)
    ]


def _count_jobs(request: Request, jobs: ReadJobs | None) -> int:
    return len(request.jobs) if jobs is None else len(jobs.places)


def _op_counts(request: Request, jobs: ReadJobs | None) -> list[int]:
    """Return the number of operator rows of each job."""
    if jobs is None:
        return [len(job.op_stats) for job in request.jobs]
    counts: list[int] = jobs.table.op_counts.tolist()
    return counts


def _checked_rows(rows: int, request: Request, jobs: ReadJobs | None) -> int:
    if rows > MAX_ROWS:
        raise InvalidJobError(
            f"the request asks for {rows} rows, at most {MAX_ROWS} are answered at once; split it"
        )
    counts = {"jobs": _count_jobs(request, jobs), "devices": len(request.devices)}
    for name, count in counts.items():
        if not 1 <= count <= MAX_ROWS:
            raise InvalidJobError(f"{name} has {count} entries, must have 1 to {MAX_ROWS}")
    return rows


_Where = tuple[int, int, float]  # positions of a job and a device in their tables, and the share


class _Tables:
    """Valid jobs and devices of a request, and the errors of the others."""

    def __init__(self, request: Request, known: Devices, jobs: ReadJobs | None) -> None:
        if jobs is None:
            jobs = read_jobs(request.jobs)
        self._jobs, self._job_at, self._job_errors = jobs.table, jobs.places, jobs.errors
        devices: list[Device] = []
        self._device_errors: dict[int, PresageError] = {}
        self._shares: list[Share] = []  # of every device in the request
        for i, row in enumerate(request.devices):
            try:
                share = read_share(row, f"devices[{i}]") if row.HasField("share") else Share()
                similar = known.similar_kinds if len(self._device_errors) < _MAX_HINTS else None
                devices.append(
                    read_device(row, known.known_device, f"devices[{i}]", similar=similar)
                )
            except PresageError as error:
                self._device_errors[i] = without_frames(error)
                share = Share()
            self._shares.append(share)
        self._devices = device_table(devices)
        self._device_at = _positions(len(request.devices), self._device_errors)

    def everywhere(self) -> ParsedRequest:
        """Return the request for every job on every device."""
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
        """Return the table positions and share of a placement or member; raise its error."""
        job, device = row.job_index, device_index
        _check_index(job, len(self._job_at), f"{at}.job_index", "jobs")
        _check_index(device, len(self._device_at), f"{at}.device_index", "devices")
        for error in (self._job_errors.get(job), self._device_errors.get(device)):
            if error is not None:
                raise error
        share = read_share(row, at) if row.HasField("share") else self._shares[device]
        return int(self._job_at[job]), int(self._device_at[device]), share.fraction

    def members(self, colocation: pb.Colocation, at: str) -> list[_Where]:
        """Return the table positions and shares of the members of a co-location."""
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
        """Return the placement table of these positions and shares."""
        job, device, share = np.array(rows, dtype=np.float64).reshape(len(rows), 3).T
        table = PlacementTable(
            self._jobs, self._devices, job.astype(np.intp), device.astype(np.intp), share
        )
        _check_work(table)
        return table


class Positions(Generic[T]):
    """Distinct objects in the order of their first occurrence."""

    def __init__(self) -> None:
        self.values: list[T] = []
        # By id: hashing a job of a hundred operator rows costs more than it saves. The list above
        # keeps the objects alive, so ids stay unique.
        self._positions: dict[int, int] = {}

    def position(self, value: T) -> int:
        """Return the position of ``value``; add it if it is new."""
        position = self._positions.setdefault(id(value), len(self.values))
        if position == len(self.values):
            self.values.append(value)
        return position


def _again(row: Numbers, times: int) -> Numbers:
    """Return repeated rows, shape (times x row,); np.tile is ten times slower for few rows."""
    return cast(Numbers, np.concatenate((row,) * times))


def _positions(rows: int, errors: Mapping[int, PresageError]) -> Ints:
    """Return the position of each row among those without an error; -1 for an error."""
    if not errors:
        return np.arange(rows)
    good = np.ones(rows, dtype=np.bool_)
    good[list(errors)] = False
    return np.where(good, np.cumsum(good) - 1, -1)


def _check_work(table: PlacementTable) -> None:
    visits = int(table.jobs.op_counts[table.job].sum())
    if visits > MAX_OP_ROW_VISITS:
        raise InvalidJobError(
            f"the request needs {visits} operator rows (those of each job, once per prediction), "
            f"at most {MAX_OP_ROW_VISITS} are allowed; split it"
        )


def _check_index(index: int, size: int, where: str, name: str) -> None:
    if index >= size:
        raise InvalidJobError(
            f"{where}={index}, but {name} has {size} entries; positions count from 0"
        )
