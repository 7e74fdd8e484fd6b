"""Conversion and validation of reported outcomes, before they are written to disk."""

from __future__ import annotations

import math
from collections.abc import Sequence

from presage.errors import InvalidJobError, PresageError, without_frames
from presage.features.quantities.quantity_registry import additional_quantities, job_quantities
from presage.serving.codec.wire_jobs import read_jobs
from presage.serving.codec.wire_values import (
    KnownDevice,
    check_text,
    read_device,
    read_error,
    read_share,
    write_device,
    write_job,
    write_share,
)
from presage.serving.outcomes.outcome import Outcome, Reported
from presage.serving.v1 import prediction_pb2 as pb

MAX_OUTCOMES = 1024  # per report
MAX_COLOCATED_JOBS = 63
FAILURES = ("", "out-of-memory", "crash", "timeout")


def measured_values(outcome: pb.Outcome) -> dict[str, float]:
    """Return the registered quantities that an outcome reports, by forecast field."""
    out: dict[str, float] = {}
    for name, quantity in job_quantities().items():
        if not quantity.in_proto:
            if name in outcome.additional:
                out[name] = outcome.additional[name]
        elif outcome.HasField(quantity.column):
            out[name] = getattr(outcome, quantity.column)
    return out


def check_count(request: pb.ReportOutcomesRequest) -> None:
    """Raise InvalidJobError for a report without outcomes or with too many."""
    if not 1 <= len(request.outcomes) <= MAX_OUTCOMES:
        raise InvalidJobError(
            f"outcomes has {len(request.outcomes)} entries, must have 1 to {MAX_OUTCOMES}; split it"
        )


def read_outcomes(
    request: pb.ReportOutcomesRequest, known: KnownDevice
) -> tuple[list[pb.Outcome], dict[int, PresageError]]:
    """Return the valid outcomes, and the errors of the others by position."""
    errors: dict[int, PresageError] = {}
    jobs: list[pb.Job] = []
    places: list[tuple[int, str]] = []  # per job: its outcome and its path
    for i, outcome in enumerate(request.outcomes):
        try:
            check_outcome(outcome, known, f"outcomes[{i}]")
        except PresageError as error:
            errors[i] = without_frames(error)
            continue
        jobs += [outcome.job, *(row.job for row in outcome.colocated_jobs)]
        places.append((i, f"outcomes[{i}].job"))
        places += [
            (i, f"outcomes[{i}].colocated_jobs[{j}].job")
            for j in range(len(outcome.colocated_jobs))
        ]
    for position, job_error in read_jobs(jobs, lambda position: places[position][1]).errors.items():
        errors.setdefault(places[position][0], job_error)
    return [row for i, row in enumerate(request.outcomes) if i not in errors], errors


def check_outcome(outcome: pb.Outcome, known: KnownDevice, where: str) -> None:
    """Validate an outcome except its jobs.

    Raises
    ------
    InvalidJobError, UnknownDeviceError
        Names the place, the problem and the fix.
    """
    if not outcome.idempotency_key:
        raise InvalidJobError(
            f"{where}.idempotency_key is empty; use a unique key, such as job id and attempt, and "
            "the same key for retries"
        )
    check_text(outcome.idempotency_key, f"{where}.idempotency_key")
    check_text(outcome.release_id, f"{where}.release_id")
    read_device(outcome.device, known, f"{where}.device")
    if outcome.HasField("share"):
        read_share(outcome, where)
    if len(outcome.colocated_jobs) > MAX_COLOCATED_JOBS:
        raise InvalidJobError(
            f"{where}.colocated_jobs has {len(outcome.colocated_jobs)} entries, at most "
            f"{MAX_COLOCATED_JOBS} are allowed"
        )
    for i, row in enumerate(outcome.colocated_jobs):
        if row.HasField("share"):
            read_share(row, f"{where}.colocated_jobs[{i}]")
    if outcome.failure not in FAILURES:
        raise InvalidJobError(
            f"{where}.failure is not known; use '' for none, or one of {', '.join(FAILURES[1:])}"
        )
    _check_numbers(outcome, where)


def write_report(outcomes: Sequence[Outcome]) -> pb.ReportOutcomesRequest:
    """Return the request that reports outcomes."""
    return pb.ReportOutcomesRequest(outcomes=[_write(outcome) for outcome in outcomes])


def read_reported(response: pb.ReportOutcomesResponse) -> Reported:
    """Return the result of a report."""
    refused = {row.index: read_error(row.error) for row in response.rejected}
    return Reported(response.accepted, response.duplicates, refused)


def _write(outcome: Outcome) -> pb.Outcome:
    return pb.Outcome(
        job=write_job(outcome.job),
        device=write_device(outcome.device),
        share=write_share(outcome.share),
        release_id=outcome.release_id,
        finished_at_unix_s=outcome.finished_at_unix_s,
        additional=outcome.additional,
        **{
            one.column: getattr(outcome, one.column)
            for one in job_quantities().values()
            if one.in_proto
        },
        failure=outcome.failure,
        idempotency_key=outcome.idempotency_key,
        colocated_jobs=[
            pb.Outcome.ColocatedJob(job=write_job(job), share=write_share(share))
            for job, share in outcome.colocated_jobs
        ],
    )


def _check_numbers(outcome: pb.Outcome, where: str) -> None:
    _check(outcome.finished_at_unix_s, f"{where}.finished_at_unix_s", math.inf)
    known, measured = job_quantities(), measured_values(outcome)
    for name, value in measured.items():
        quantity = known[name]
        field = quantity.column if quantity.in_proto else f"additional[{name!r}]"
        _check(value, f"{where}.{field}", quantity.maximum)
    if len(outcome.additional) > sum(not known[name].in_proto for name in measured):
        raise InvalidJobError(
            f"{where}.additional names a quantity that is not predicted; those that are: "
            f"{', '.join(additional_quantities()) or 'none'}"
        )
    if not measured and not outcome.failure:
        names = (quantity.column for quantity in known.values() if quantity.in_proto)
        raise InvalidJobError(
            f"{where} has no measurement; give one of {', '.join(names)}, or its failure"
        )


def _check(value: float, where: str, at_most: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= at_most):
        bound = "" if at_most == math.inf else f" and <= {at_most:g}"
        raise InvalidJobError(f"{where}={value}, must be a finite number >= 0{bound}")
