"""What a trace is like, in figures."""

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
    """Of a trace.

    Attributes
    ----------
    span_s : float
        From the first submission to the last.
    devices_busy : float or None
        Offered load: devices, or parts of them, that its jobs would keep busy on average over the
        span if none ever waited. None where all come at once.
    arrival_dispersion : float or None
        Index of dispersion: variance over mean of the submissions an hour, 1 for a Poisson process
        of constant rate. None of less than two whole hours.
    gangs : Mapping[int, int]
        Jobs of each size.
    duration_s : Mapping[str, float]
        "p50" and others, percentiles, and "mean"; empty where there are no jobs.
    users, models : Mapping[str, int]
        Jobs of each that is named, those with most first.
    left_out : Mapping[str, int]
        Rows of the file that are no jobs, by the reason.
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


def summary_of(trace: Trace) -> Summary:
    """Figures of a trace."""
    jobs = trace.jobs
    submit_s = np.array([job.submit_s for job in jobs])
    durations = np.array([trace.duration_s[job.job_id] for job in jobs])
    held = np.array([job.gpus * job.compute_milli / FULL_DEVICE_MILLI for job in jobs])
    span_s = float(submit_s[-1] - submit_s[0]) if jobs else 0.0
    percentiles = np.percentile(durations, _PERCENTILES) if jobs else ()
    figures = {f"p{p}": float(v) for p, v in zip(_PERCENTILES, percentiles, strict=bool(jobs))}
    return Summary(
        jobs=len(jobs),
        span_s=span_s,
        devices_busy=float(held @ durations) / span_s if span_s else None,
        arrival_dispersion=dispersion(submit_s, HOUR_S),
        gangs=dict(sorted(Counter(job.gpus for job in jobs).items())),
        duration_s=figures | ({"mean": float(durations.mean())} if jobs else {}),
        users=_named(job.user for job in jobs),
        models=_named(job.model for job in jobs),
        left_out=trace.left_out,
    )


def dispersion(submit_s: NDArray[np.float64], bin_s: float) -> float | None:
    """Variance over mean of the submissions in whole bins of the trace's time, from the first on.

    None of less than two whole bins.
    """
    bin_of = submit_s // bin_s
    bins = bin_of[-1] - bin_of[0] if len(bin_of) else 0  # the last one is not over
    if bins < 2:
        return None
    _, counts = np.unique(bin_of[bin_of < bin_of[-1]], return_counts=True)
    mean = counts.sum() / bins
    return float(((counts**2).sum() / bins - mean**2) / mean)


def _named(names: Iterable[str]) -> dict[str, int]:
    """How often each is there, but "", the most frequent first."""
    counts = Counter(filter(None, names))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
