"""Decision about a submitted job from its forecast. Pure: does no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

from presage.features.device.device import Device
from presage.schedulers.slurm.bridge.submission import Changes, Submission
from presage.schedulers.slurm.job_note import MAX_MINUTES, JobNote
from presage.serving.predictor.prediction_backend import JobForecast

MIB = 2**20
CPU = "cpu"  # a job without GPUs, in the mapping of GRES types to device kinds
_MAX_NICE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOptions:
    """How forecasts become requests.

    Attributes
    ----------
    quantile : float
        Level of the run time to set as the time limit.
    risk : float
        Accepted probability that a job takes more memory than is requested for it.
    lead_minutes : int
        Least time limit, and the time before a limit at which the watcher extends it.
    shards_per_gpu : int
        Shards of each GPU (gres/shard); 0 if there are none.
    nice_per_doubling : int
        Nice value for each doubling of the predicted run time above a minute; 0 sets none.
    """

    quantile: float = 0.9
    risk: float = 0.1
    lead_minutes: int = 10
    shards_per_gpu: int = 0
    nice_per_doubling: int = 0


def decide(
    job: Submission,
    forecast: JobForecast,
    device: Device,
    features: str,
    options: DecisionOptions,
) -> Changes:
    """Return the changes for a job.

    A value is unchanged if the user gave it, the options pin it, or its forecast is out of domain
    or not a positive number. The time limit is only lowered.

    Parameters
    ----------
    forecast : JobForecast
        Of the job on its devices, without co-located jobs. Run time at ``options.quantile`` and
        memory at ``1 - options.risk`` are the upper ends of their intervals.
    features : str
        Digest of the features in the feature store.
    """
    runtime = forecast.runtime_s
    is_known = runtime.in_domain and _is_positive(runtime.high)
    minutes = _time_limit(job, runtime.high, options) if is_known else None
    memory = forecast.memory_bytes
    bound = memory.high if memory.in_domain and _is_positive(memory.high) else None
    shards = _shards(job, forecast, bound, device, options)
    note = JobNote(
        own_minutes=job.own_minutes,
        set_minutes=minutes,
        predicted_s=runtime.high if is_known else None,
        median_s=runtime.median if is_known else None,
        quantile=options.quantile,
        risk=options.risk,
        release_id=runtime.release_id,
        device=device.kind,
        share=min(1.0, shards / options.shards_per_gpu) if shards else 1.0,
        features=features,
    )
    return Changes(
        time_limit_minutes=minutes,
        memory_mib=_host_memory(job, bound),
        shards=shards,
        nice=_nice(job, runtime.median, options) if is_known else None,
        note=note.text(),
    )


def _time_limit(job: Submission, runtime_s: float, options: DecisionOptions) -> int | None:
    """Return a time limit below the user's own; None to keep it."""
    if "pin-time" in job.options or job.has_time_min or not job.has_own_limit:
        return None
    minutes = max(options.lead_minutes, math.ceil(runtime_s / 60))
    own_minutes = MAX_MINUTES if job.own_minutes is None else job.own_minutes
    return minutes if minutes < own_minutes else None


def _host_memory(job: Submission, bound_bytes: float | None) -> int | None:
    """Return the host memory of a job without GPU; a GPU job's forecast is of the GPU's memory."""
    if job.gpus or job.has_memory or "pin-memory" in job.options or bound_bytes is None:
        return None
    return math.ceil(bound_bytes / MIB)


def _shards(
    job: Submission,
    forecast: JobForecast,
    bound_bytes: float | None,
    device: Device,
    options: DecisionOptions,
) -> int | None:
    """Return the shards that replace one GPU of a job that may share it; None for a whole GPU."""
    used = forecast.compute_utilization
    _, gpus = job.gpu_request()
    if "share" not in job.options or not options.shards_per_gpu or gpus != 1:
        return None
    if bound_bytes is None or not used.in_domain or not _is_positive(used.high):
        return None
    fraction = max(bound_bytes / device.memory_bytes, used.high)
    shards = math.ceil(fraction * options.shards_per_gpu)
    return shards if shards < options.shards_per_gpu else None


def _nice(job: Submission, runtime_s: float, options: DecisionOptions) -> int | None:
    if not options.nice_per_doubling or job.has_nice or "pin-nice" in job.options:
        return None
    doublings = math.log2(max(1.0, runtime_s / 60))
    return min(_MAX_NICE, round(options.nice_per_doubling * doublings))


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
