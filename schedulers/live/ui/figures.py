"""Formatting of numbers, times and job states for operators."""

from __future__ import annotations

import math
import time
from urllib.parse import quote, urlencode

from presage.schedulers.live.protocol.job_states import state_name
from presage.schedulers.report.figures import format_time_span
from presage.schedulers.v1 import cluster_pb2 as pb

_MINUTES_S = 600  # longer durations are shown without seconds
ON_NODE = frozenset({pb.PLACED, pb.RUNNING, pb.PAUSED, pb.LEAVING})
# In the order in which they need an operator's attention.
SLO_VIOLATED = "SLO violated"
STATES = (SLO_VIOLATED, "paused", "leaving", "placed", "running")


def format_duration(seconds: float) -> str:
    """Format a duration, rounded for reading; "-" if it is unknown."""
    if not math.isfinite(seconds):
        return "-"
    if seconds >= _MINUTES_S:
        seconds = 60 * round(seconds / 60)
    return format_time_span(
        round(seconds) if seconds >= 1 else 0.0 if seconds <= 0 else round(seconds, 1)
    )


def size(value: float) -> str:
    """Format bytes briefly, with their unit; less than a MiB counts as 1 MiB."""
    if value < 2**30:
        return f"{value / 2**20:,.0f} MiB" if value >= 2**20 or not value else "1 MiB"
    large, unit = (value / 2**30, "GiB") if value < 2**40 else (value / 2**40, "TiB")
    return f"{f'{large:,.1f}'.removesuffix('.0')} {unit}"


def percent(milli: float) -> str:
    """Format thousandths as a percentage."""
    return f"{milli / 10:.0f} %"


def done_text(row: pb.JobStatus) -> str:
    """Format the completed part of a job; "~40 %" if it is predicted and not reported."""
    if not row.done:
        return "-"
    return f"{'~' if row.done_estimated else ''}{percent(1000 * row.done)}"


def share(milli: float) -> str:
    """Format an allocated share, which is exact."""
    return f"{milli / 10:g} %"


def clock(unix_s: float, *, day: bool = False) -> str:
    """Format a time in this machine's time zone; "-" if it has not come yet."""
    if not unix_s:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S", time.localtime(unix_s))


def display_state(row: pb.JobStatus) -> str:
    """Return the displayed state of a job: its phase, or that its SLO is violated."""
    if row.slo_violated and row.phase in (pb.RUNNING, pb.PAUSED):
        return SLO_VIOLATED
    return state_name(row)


def prediction_for(row: pb.JobStatus, kind: str) -> pb.Prediction | None:
    """Return the prediction of a job for a kind of device, or the only one if the kind is ""."""
    for prediction in row.predictions:
        if prediction.kind == kind or (not kind and len(row.predictions) == 1):
            return prediction
    return None


def start_text(answer: pb.WhatIfAnswer | None) -> str:
    """Return when a waiting job starts, with an 80 % interval; "" without a prediction."""
    if answer is None or answer.verdict == "started":
        return ""
    if not answer.HasField("start"):
        return f"start {answer.verdict}"
    start = answer.start
    if math.isinf(start.median_s):
        return "starts after more than a week"
    last = "later" if math.isinf(start.high_s) else format_duration(start.high_s)
    between = f"{format_duration(start.low_s)} to {last}"
    return f"starts in {format_duration(start.median_s)} (80 %: {between})"


def forecast_quality(prediction: pb.Prediction) -> str:
    """Return whether a forecast exists and is in the domain of the training data."""
    if not prediction.is_predicted:
        return "no forecast: exclusive device"
    return "in domain" if prediction.in_domain else "out of domain"


query_string = urlencode


def job_url(job_id: str) -> str:
    """Return the address of a job's page.

    Browsers resolve paths of dots, so such names are passed as a parameter.
    """
    if job_id in (".", ".."):
        return f"/jobs/?name={quote(job_id)}"
    return f"/jobs/{quote(job_id, safe='')}"
