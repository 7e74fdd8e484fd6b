"""Summary statistics of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.traces.trace import Trace

HOUR_S = 3600.0
_PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary statistics of a trace.

    Attributes
    ----------
    span_s : float
        Time from the first to the last submission.
    devices_busy : float or None
        Offered load: devices that the jobs would keep busy on average over the span if none ever
        waited; shares of devices count as fractions. None if all jobs are submitted at once.
    arrival_dispersion : float or None
        Index of dispersion: variance over mean of the submissions per hour, 1 for a Poisson process
        of constant rate. None for less than two whole hours.
    gangs : Mapping[int, int]
        Number of jobs by gang size.
    duration_s : Mapping[str, float]
        Percentiles ("p50" and others) and "mean"; empty without jobs.
    users, models : Mapping[str, int]
        Number of jobs by name, in descending order.
    left_out : Mapping[str, int]
        Number of skipped rows of the file, by reason.
    """

    jobs: int
    span_s: float
    devices_busy: float | None
    arrival_dispersion: float | None
    gangs: Mapping[int, int]
    duration_s: Mapping[str, float]
    users: Mapping[str, int]
    models: Mapping[str, int]
    left_out: Mapping[str, int]


def summarize(trace: Trace) -> Summary:
    """Return the summary statistics of a trace."""
    jobs = trace.jobs
    submit_s = np.array([job.submit_s for job in jobs])
    durations = np.array([trace.duration_s[job.job_id] for job in jobs])
    devices = np.array([job.gpus * job.compute_milli / FULL_DEVICE_MILLI for job in jobs])
    span_s = float(submit_s[-1] - submit_s[0]) if jobs else 0.0
    percentiles = np.percentile(durations, _PERCENTILES) if jobs else ()
    figures = {f"p{p}": float(v) for p, v in zip(_PERCENTILES, percentiles, strict=bool(jobs))}
    return Summary(
        jobs=len(jobs),
        span_s=span_s,
        devices_busy=float(devices @ durations) / span_s if span_s else None,
        arrival_dispersion=dispersion(submit_s, HOUR_S),
        gangs=dict(sorted(Counter(job.gpus for job in jobs).items())),
        duration_s=figures | ({"mean": float(durations.mean())} if jobs else {}),
        users=_count_names(job.user for job in jobs),
        models=_count_names(job.model for job in jobs),
        left_out=trace.left_out,
    )


def dispersion(submit_s: NDArray[np.float64], bin_s: float) -> float | None:
    """Return the variance over the mean of the submissions per bin, from the first whole bin on.

    None for less than two whole bins.
    """
    index = submit_s // bin_s
    bins = index[-1] - index[0] if len(index) else 0  # without the last bin, which is incomplete
    if bins < 2:
        return None
    _, counts = np.unique(index[index < index[-1]], return_counts=True)
    mean = counts.sum() / bins
    return float(((counts**2).sum() / bins - mean**2) / mean)


def _count_names(names: Iterable[str]) -> dict[str, int]:
    """Count names other than "", the most frequent first."""
    counts = Counter(filter(None, names))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
