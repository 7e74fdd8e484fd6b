"""Elastic jobs from a trace that says nothing of it: a range around the requested devices."""

from __future__ import annotations

import math
from dataclasses import replace

from presage.errors import ConfigError
from presage.schedulers.core.job import Job
from presage.schedulers.traces.trace import Trace


def parse_range(text: str) -> tuple[float, float]:
    """Return the least and most devices of a job over its request, from "0.25,2".

    Raises
    ------
    ConfigError
        The text is not two numbers, or they are not within (0, 1] and [1, infinity).
    """
    try:
        least, most = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"elastic {text!r} is not LEAST,MOST; give two factors of the requested devices, "
            "such as 0.25,2"
        ) from None
    if not (0 < least <= 1 <= most < math.inf):
        raise ConfigError(
            f"elastic {text!r}: LEAST must be above 0 and at most 1, and MOST at least 1"
        )
    return least, most


def with_elastic_jobs(trace: Trace, least: float, most: float) -> Trace:
    """Return the trace with a range of sizes for every job that has none."""
    return replace(trace, jobs=tuple(_with_range(job, least, most) for job in trace.jobs))


def _with_range(job: Job, least: float, most: float) -> Job:
    if job.is_elastic or job.gpus_per_task > 1:
        return job
    return replace(
        job, min_gpus=max(1, math.ceil(least * job.gpus)), max_gpus=int(most * job.gpus)
    )  # fmt: skip
