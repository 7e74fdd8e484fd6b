"""Calls of a client: requests and the parsers of their responses, without a connection.

Inputs that exceed the limits of one request are split into several calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from presage.errors import PresageError
from presage.features.colocation import Colocation
from presage.features.columns.schema import schema_hash
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.scaling.scaling_request import ScalingForecasts, ScalingRequest
from presage.serving.codec import (
    wire_matrix,
    wire_outcomes,
    wire_requests,
    wire_scaling,
    wire_values,
)
from presage.serving.codec.request_limits import MAX_MESSAGE_BYTES, MAX_OP_ROW_VISITS, MAX_ROWS
from presage.serving.outcomes.outcome import Outcome, Reported
from presage.serving.predictor.prediction_backend import (
    ColocationForecast,
    JobForecast,
    ReleaseInfo,
)
from presage.serving.v1 import prediction_pb2 as pb

# Approximate sizes of a job and of an operator row in a request; half of the limit is used.
_JOB_BYTES, _OP_BYTES = 512, 96
_MAX_BYTES = MAX_MESSAGE_BYTES // 2

Answer = TypeVar("Answer")
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class ServiceCall(Generic[Answer]):
    """Call of the service: method name, request message and parser of the response."""

    method: str
    request: Any
    read: Callable[[Any], Answer]


def predict(
    placements: Sequence[Placement], coverage: float, levels: Sequence[float]
) -> Iterator[ServiceCall[list[JobForecast | PresageError]]]:
    """Yield calls for placements, in order."""
    for part in _parts(placements, lambda placement: [placement.job]):
        yield ServiceCall(
            "Predict",
            wire_requests.write_predict(part, coverage, levels),
            wire_values.read_job_forecasts,
        )


def predict_interference(
    colocations: Sequence[Colocation], coverage: float, levels: Sequence[float]
) -> Iterator[ServiceCall[list[ColocationForecast | PresageError]]]:
    """Yield calls for co-locations, in order."""
    for part in _parts(colocations, lambda colocation: colocation.members):
        yield ServiceCall(
            "PredictInterference",
            wire_requests.write_predict_interference(part, coverage, levels),
            wire_values.read_colocation_forecasts,
        )


def predict_scaling(request: ScalingRequest, coverage: float) -> ServiceCall[ScalingForecasts]:
    """Return the call for the steps of one job at several numbers of GPUs and nodes."""
    return ServiceCall(
        "PredictScaling",
        wire_scaling.write_scaling(request, coverage),
        wire_scaling.read_scaling_forecasts(len(request.placements)),
    )


def release(kinds: Sequence[str] = ()) -> ServiceCall[ReleaseInfo]:
    """Return the call for the served release with devices of those kinds, all kinds by default."""
    return ServiceCall(
        "GetRelease", pb.GetReleaseRequest(device_kinds=kinds), wire_values.read_release
    )


def report(outcomes: Sequence[Outcome]) -> ServiceCall[Reported]:
    """Return the call that reports outcomes."""
    return ServiceCall(
        "ReportOutcomes", wire_outcomes.write_report(outcomes), wire_outcomes.read_reported
    )


def report_rows(rows: Sequence[pb.Outcome]) -> ServiceCall[Reported]:
    """Return the call that reports outcomes that are protobuf messages already."""
    request = pb.ReportOutcomesRequest(outcomes=rows)
    return ServiceCall("ReportOutcomes", request, wire_outcomes.read_reported)


def predict_matrix(
    placements: Sequence[Placement], coverage: float
) -> Iterator[ServiceCall[list[JobForecast]]]:
    """Yield calls for placements whose features the client computes, in order."""
    for begin in range(0, len(placements), MAX_ROWS):
        request = wire_matrix.write_matrix(placements[begin : begin + MAX_ROWS], schema_hash())
        yield ServiceCall(
            "PredictMatrix", request, partial(wire_matrix.read_matrix_forecasts, coverage=coverage)
        )


def reload() -> ServiceCall[ReleaseInfo]:
    """Return the call that makes the server check for a newer release."""
    return ServiceCall("Reload", pb.ReloadRequest(), wire_values.read_release)


def _parts(
    rows: Sequence[Row], jobs_of: Callable[[Row], Sequence[JobFeatures]]
) -> Iterator[list[Row]]:
    """Yield rows in parts that each fit into one request."""
    part: list[Row] = []
    jobs: set[int] = set()
    count = visits = size_bytes = 0
    for row in rows:
        members = jobs_of(row)
        more_visits = sum(len(job.op_stats) for job in members)
        more_bytes = sum(
            _JOB_BYTES + _OP_BYTES * len(job.op_stats) for job in members if id(job) not in jobs
        )
        if part and (
            count + len(members) > MAX_ROWS
            or visits + more_visits > MAX_OP_ROW_VISITS
            or size_bytes + more_bytes > _MAX_BYTES
        ):
            yield part
            part, jobs, count, visits, size_bytes = [], set(), 0, 0, 0
            more_bytes = sum(_JOB_BYTES + _OP_BYTES * len(job.op_stats) for job in members)
        part.append(row)
        jobs.update(map(id, members))
        count, visits, size_bytes = (
            count + len(members), visits + more_visits, size_bytes + more_bytes,
        )  # fmt: skip
    if part:
        yield part
