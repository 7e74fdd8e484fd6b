"""Assignment of models to the jobs of traces that do not name them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from presage.schedulers.core.job import Job
from presage.schedulers.traces.trace import Trace

_STEPS_PER_DOUBLING = 4  # durations within a fifth of each other count as equal


def assign_models(trace: Trace, models: Sequence[str], seed: int) -> Trace:
    """Return the trace with a model for every job, drawn uniformly from ``models`` if missing.

    Users submit the same job repeatedly: jobs of one user with the same gang size and about the
    same duration (within the same quarter of a doubling) get the same model. A job without a user
    draws by its job_id. A draw is a hash of these values and the seed, so that it does not depend
    on the other jobs of the trace.
    """
    if not models:
        raise ValueError("models is empty; pass at least one model")
    jobs = (
        job if job.model else replace(job, model=_model(job, trace, models, seed))
        for job in trace.jobs
    )
    return Trace(tuple(jobs), trace.duration_s, trace.left_out)


def _model(job: Job, trace: Trace, models: Sequence[str], seed: int) -> str:
    key: tuple[int | str, ...] = (seed, job.job_id)
    if job.user:
        duration_class = math.floor(
            _STEPS_PER_DOUBLING * math.log2(1 + trace.duration_s[job.job_id])
        )
        key = (seed, job.user, job.gpus, duration_class)
    draw = int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest())
    return models[draw % len(models)]
