"""Rows of ended jobs, with the errors of their forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from presage.schedulers.live.client.elastic_text import is_elastic
from presage.schedulers.live.protocol.forecast_error import forecast_error
from presage.schedulers.live.ui.figures import display_state, format_duration, prediction_for
from presage.schedulers.live.ui.page_rows import device_kinds
from presage.schedulers.v1 import cluster_pb2 as pb

ENDED_STATES = ("finished", "failed", "cancelled", "rejected", "timed-out")
ROWS_PER_PAGE = 50
MAX_PAGE = 100_000


class EndedJob(NamedTuple):
    """Job that has ended.

    Attributes
    ----------
    predicted : str
        Predicted run time with its upper bound; "" without a forecast.
    error : str
        Relative error of the prediction; "" if it has none.
    is_beyond_bound : bool
        Whether the job took longer than the upper bound.
    """

    status: pb.JobStatus
    state: str
    predicted: str
    error: str
    is_beyond_bound: bool


class EndedJobs(NamedTuple):
    """Page of the list of ended jobs; the newest are on page 1."""

    rows: list[EndedJob]
    page: int
    pages: int
    first: int
    total: int


def make_ended_jobs(found: pb.ListResponse, page: int) -> EndedJobs:
    """Return a page from the controller's response to the request for it."""
    kinds = device_kinds(found.nodes)
    offset = ROWS_PER_PAGE * (page - 1)
    total = offset + len(found.jobs) + found.remaining_job_count if found.jobs else 0
    rows = [_row(row, kinds) for row in found.jobs]
    return EndedJobs(rows, page, max(1, -(-total // ROWS_PER_PAGE)), offset + 1, total)


def _row(row: pb.JobStatus, kinds: Mapping[str, Sequence[str]]) -> EndedJob:
    prediction = prediction_for(row, _kind(row, kinds))
    if prediction is None or not prediction.is_predicted:
        return EndedJob(row, display_state(row), "", "", is_beyond_bound=False)
    predicted = f"{format_duration(prediction.runtime_s)}, ≤ {format_duration(prediction.slo_s)}"
    # The prediction is of one uninterrupted run on a fixed number of devices.
    is_comparable = row.phase == pb.FINISHED and row.attempt == 1 and not is_elastic(row.job)
    error = forecast_error(prediction, row.elapsed_s) if is_comparable else None
    if error is None:
        return EndedJob(row, display_state(row), predicted, "", is_beyond_bound=False)
    text = f"{100 * error.relative:+,.0f} %"
    return EndedJob(row, display_state(row), predicted, text, error.exceeds_bound)


def _kind(row: pb.JobStatus, kinds: Mapping[str, Sequence[str]]) -> str:
    """Return the kind of a job's first device; "" if it is unknown."""
    here = kinds.get(row.node, ())
    first = row.allocations[0].device if row.allocations else 0
    return here[first] if first < len(here) else ""
