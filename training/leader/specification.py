"""Specification of a worker: what it trains, compared with what its job trains."""

from __future__ import annotations

from typing import Any

from presage.errors import ElasticError
from presage.training.data_set_grouping import check_batch
from presage.training.leader.job_config import MAX_WORKERS, JobConfig

# Parts of a specification, in the order in which they are compared.
SPECIFICATION = {
    "model": "its parameters or buffers have other names, shapes or types",
    "optimizer": "another optimizer",
    "samples": "another number of samples",
    "data_set": "another digest of the data set",
    "batch": "another batch",
    "seed": "another seed",
    "virtual_shards": "another number of virtual shards",
}


def check_specification(
    worker_id: str, specification: dict[str, Any], job: dict[str, Any] | None, config: JobConfig
) -> None:
    """Raise ElasticError unless a worker trains the same model on the same data set as its job.

    Parameters
    ----------
    job : dict or None
        Specification of the job's first worker; None for the first worker.
    """
    missing = [name for name in SPECIFICATION if name not in specification]
    if missing:
        raise ElasticError(f"worker {worker_id!r} did not report its {missing[0]}")
    if job is None:
        check_capacity(specification, config.min_workers)
        return
    for name, difference in SPECIFICATION.items():
        if specification[name] != job[name]:
            raise ElasticError(
                f"worker {worker_id!r} has another {name} than the job: {difference} "
                f"({specification[name]!r}, the job has {job[name]!r})"
            )


def capacity(specification: dict[str, Any]) -> int:
    """Return the largest number of workers of a job: its batch, or fewer virtual shards."""
    shards = int(specification["virtual_shards"])
    return min(int(specification["batch"]), shards or MAX_WORKERS, MAX_WORKERS)


def check_capacity(specification: dict[str, Any], workers: int) -> None:
    """Raise ElasticError if a number of workers is more than the capacity of a job."""
    check_batch(int(specification["batch"]), workers)
    shards = int(specification["virtual_shards"])
    if 0 < shards < workers:
        raise ElasticError(
            f"virtual_shards={shards} is less than {workers} workers; enlarge virtual_shards or "
            "lower the number of workers"
        )
