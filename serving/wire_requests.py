"""Whole requests, both ways: jobs and devices once each, referred to by position.

The limits here and in :mod:`presage.serving.wire` bound what one request may cost a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from presage.features.colocation import Colocation
from presage.features.device import Device
from presage.features.errors import InvalidJobError
from presage.features.job import JobFeatures
from presage.features.placement import Placement
from presage.serving.forecasts import DEFAULT_COVERAGE
from presage.serving.v1 import prediction_pb2 as pb
from presage.serving.wire import (
    DeviceOf,
    check_text,
    read_device,
    read_job,
    read_share,
    write_device,
    write_job,
    write_share,
)

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_ROWS = 4096  # placements, or members of all co-locations
MAX_MEMBERS = 64
# Features cost about 0.1 us for each row's each operator row. Unbounded, a request of 400 KB (one
# job of 10,000 operator rows on 4,096 devices) would keep a server busy for seconds.
MAX_OP_ROW_VISITS = 1_000_000

Request = pb.PredictRequest | pb.PredictInterferenceRequest
T = TypeVar("T")


def write_predict(placements: Sequence[Placement], coverage: float) -> pb.PredictRequest:
    """A request for placements; a job or device that occurs again is sent once."""
    jobs: _Positions[JobFeatures] = _Positions()
    devices: _Positions[Device] = _Positions()
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
    )


def read_predict(request: pb.PredictRequest, device_of: DeviceOf) -> tuple[list[Placement], float]:
    """Placements and coverage; without placements, every job on the whole of every device.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        Names the place in the request, what is wrong there, and how to mend it.
    """
    _check_rows(len(request.placements) or len(request.jobs) * len(request.devices))
    jobs, devices = _read_tables(request, device_of)
    if request.placements:
        placements = [
            Placement(
                _pick(jobs, row.job_index, f"placements[{i}].job_index", "jobs"),
                _pick(devices, row.device_index, f"placements[{i}].device_index", "devices"),
                read_share(row, f"placements[{i}]"),
            )
            for i, row in enumerate(request.placements)
        ]
    else:
        placements = [Placement(job, device) for job in jobs for device in devices]
    _check_work(placement.job for placement in placements)
    return placements, _read_coverage(request)


def write_predict_interference(
    colocations: Sequence[Colocation], coverage: float
) -> pb.PredictInterferenceRequest:
    """A request for co-locations; a job or device that occurs again is sent once."""
    jobs: _Positions[JobFeatures] = _Positions()
    devices: _Positions[Device] = _Positions()
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
    )


def read_predict_interference(
    request: pb.PredictInterferenceRequest, device_of: DeviceOf
) -> tuple[list[Colocation], float]:
    """Co-locations and coverage; raises as :func:`read_predict`."""
    if not request.colocations:
        raise InvalidJobError("colocations is empty; send at least one")
    _check_rows(sum(len(row.members) for row in request.colocations))
    jobs, devices = _read_tables(request, device_of)
    colocations = [
        _read_colocation(row, jobs, devices, f"colocations[{i}]")
        for i, row in enumerate(request.colocations)
    ]
    _check_work(job for colocation in colocations for job in colocation.members)
    return colocations, _read_coverage(request)


def read_device_kinds(request: pb.GetReleaseRequest) -> list[str]:
    """Kinds whose data sheets are asked for; none means all."""
    _check_rows(len(request.device_kinds))
    for i, kind in enumerate(request.device_kinds):
        check_text(kind, f"device_kinds[{i}]")
    return list(request.device_kinds)


def _read_colocation(
    row: pb.Colocation, jobs: Sequence[JobFeatures], devices: Sequence[Device], where: str
) -> Colocation:
    if not 1 <= len(row.members) <= MAX_MEMBERS:
        raise InvalidJobError(
            f"{where}.members has {len(row.members)} jobs, must have 1 to {MAX_MEMBERS}"
        )
    return Colocation(
        device=_pick(devices, row.device_index, f"{where}.device_index", "devices"),
        members=tuple(
            _pick(jobs, member.job_index, f"{where}.members[{i}].job_index", "jobs")
            for i, member in enumerate(row.members)
        ),
        shares=tuple(
            read_share(member, f"{where}.members[{i}]") for i, member in enumerate(row.members)
        ),
    )


def _read_tables(request: Request, device_of: DeviceOf) -> tuple[list[JobFeatures], list[Device]]:
    for name in ("jobs", "devices"):
        if not 1 <= len(getattr(request, name)) <= MAX_ROWS:
            raise InvalidJobError(
                f"{name} has {len(getattr(request, name))} entries, must have 1 to {MAX_ROWS}"
            )
    return (
        [read_job(row, f"jobs[{i}]") for i, row in enumerate(request.jobs)],
        [read_device(row, device_of, f"devices[{i}]") for i, row in enumerate(request.devices)],
    )


def _read_coverage(request: Request) -> float:
    return request.coverage if request.HasField("coverage") else DEFAULT_COVERAGE


def _check_rows(rows: int) -> None:
    if rows > MAX_ROWS:
        raise InvalidJobError(
            f"the request asks for {rows} rows, at most {MAX_ROWS} are answered at once; split it"
        )


def _check_work(jobs: Iterable[JobFeatures]) -> None:
    visits = sum(len(job.op_stats) for job in jobs)
    if visits > MAX_OP_ROW_VISITS:
        raise InvalidJobError(
            f"the request asks for {visits} operator rows to be looked at (those of each job, "
            f"once per prediction), at most {MAX_OP_ROW_VISITS} are; split it"
        )


def _pick(table: Sequence[T], index: int, where: str, name: str) -> T:
    if index >= len(table):
        raise InvalidJobError(
            f"{where}={index}, but {name} has {len(table)} entries; positions count from 0"
        )
    return table[index]


class _Positions(Generic[T]):
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
