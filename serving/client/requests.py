"""What a client sends for what it is asked, and how it reads the answer; no connection here.

Questions that are larger than one request takes become several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from presage.errors import PresageError
from presage.features.colocation import Colocation
from presage.features.columns.schema import schema_hash
from presage.features.job.job import JobFeatures
from presage.features.placement import Placement
from presage.serving.codec import wire, wire_matrix, wire_outcomes, wire_requests
from presage.serving.codec.wire_requests import MAX_MESSAGE_BYTES, MAX_OP_ROW_VISITS, MAX_ROWS
from presage.serving.outcomes.outcome import Outcome, Reported
from presage.serving.predictor.forecasts import ColocationForecast, JobForecast, ReleaseInfo
from presage.serving.v1 import prediction_pb2 as pb

# About what a job and a row of its operators take in a request; half of what fits is used.
_JOB_BYTES, _OP_BYTES = 512, 96
_MOST_BYTES = MAX_MESSAGE_BYTES // 2

Answer = TypeVar("Answer")
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """A method of the service, a request for it, and what its response is read with."""

    method: str
    request: Any
    read: Callable[[Any], Answer]


def predict(
    placements: Sequence[Placement], coverage: float, levels: Sequence[float]
) -> Iterator[Question[list[JobForecast | PresageError]]]:
    """Questions for placements, in order."""
    for part in _parts(placements, lambda placement: [placement.job]):
        yield Question(
            "Predict", wire_requests.write_predict(part, coverage, levels), wire.read_job_forecasts
        )


def predict_interference(
    colocations: Sequence[Colocation], coverage: float, levels: Sequence[float]
) -> Iterator[Question[list[ColocationForecast | PresageError]]]:
    """Questions for co-locations, in order."""
    for part in _parts(colocations, lambda colocation: colocation.members):
        yield Question(
            "PredictInterference",
            wire_requests.write_predict_interference(part, coverage, levels),
            wire.read_colocation_forecasts,
        )


def release(kinds: Sequence[str] = ()) -> Question[ReleaseInfo]:
    """What is served, with the devices of those kinds; of all that are known without any."""
    return Question("GetRelease", pb.GetReleaseRequest(device_kinds=kinds), wire.read_release)


def report(outcomes: Sequence[Outcome]) -> Question[Reported]:
    """Outcomes, as they are to be kept."""
    return Question(
        "ReportOutcomes", wire_outcomes.write_report(outcomes), wire_outcomes.read_reported
    )


def report_rows(rows: Sequence[pb.Outcome]) -> Question[Reported]:
    """Outcomes that were written before, as messages."""
    request = pb.ReportOutcomesRequest(outcomes=rows)
    return Question("ReportOutcomes", request, wire_outcomes.read_reported)


def predict_matrix(
    placements: Sequence[Placement], coverage: float
) -> Iterator[Question[list[JobForecast]]]:
    """Questions for placements whose features are computed here, in order."""
    for begin in range(0, len(placements), MAX_ROWS):
        request = wire_matrix.write_matrix(placements[begin : begin + MAX_ROWS], schema_hash())
        yield Question(
            "PredictMatrix", request, partial(wire_matrix.read_matrix_forecasts, coverage=coverage)
        )


def reload() -> Question[ReleaseInfo]:
    """Look for a newer release now."""
    return Question("Reload", pb.ReloadRequest(), wire.read_release)


def _parts(
    rows: Sequence[Row], jobs_of: Callable[[Row], Sequence[JobFeatures]]
) -> Iterator[list[Row]]:
    """As many rows at a time as one request may hold."""
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
            or size_bytes + more_bytes > _MOST_BYTES
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
