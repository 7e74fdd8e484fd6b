"""Names of models for jobs of traces that do not say what they train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from presage.schedulers.core.job import Job
from presage.schedulers.traces.trace import Trace

_STEPS_PER_DOUBLING = 4  # durations within a fifth of each other count as alike


def assign_models(trace: Trace, models: Sequence[str], seed: int) -> Trace:
    """The trace, and whoever has no model has one of ``models``, each as likely as another.

    People submit the same thing again and again: jobs of one user with the same gang size and
    about the same duration (within the same quarter of a doubling) train the same model. A job
    without a user draws by its job_id. A draw is a hash of this and the seed, so that other jobs in
    the trace change nothing.
    """
    if not models:
        raise ValueError("no models to choose from")
    jobs = (
        job if job.model else replace(job, model=_model(job, trace, models, seed))
        for job in trace.jobs
    )
    return Trace(tuple(jobs), trace.duration_s, trace.left_out)


def _model(job: Job, trace: Trace, models: Sequence[str], seed: int) -> str:
    key: tuple[int | str, ...] = (seed, job.job_id)
    if job.user:
        alike = math.floor(_STEPS_PER_DOUBLING * math.log2(1 + trace.duration_s[job.job_id]))
        key = (seed, job.user, job.gpus, alike)
    drawn = int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest())
    return models[drawn % len(models)]
