"""Arrays of jobs: their indices as users write them, and the jobs of each index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from presage.errors import InvalidJobError
from presage.schedulers.v1 import cluster_pb2 as pb

INDEX = "PRESAGE_ARRAY_INDEX"  # environment variable of a job
MAX_ARRAY = 1_000  # jobs, as in a Submit request
_MAX_INDEX = 10**9
_PART = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)
_LIMIT = re.compile(r"0{0,9}[1-9]\d{0,8}", re.ASCII)


class ArraySpec(NamedTuple):
    """Indices of an array, and how many of its jobs may run at once; 0 for no limit."""

    indices: Sequence[int]
    limit: int = 0


def parse_array(text: str) -> ArraySpec:
    """Return the array of "0-9", "0-9%4", "1,3,5-7" or "0-15:4".

    Raises
    ------
    InvalidJobError
        The text is not such a list, has an index twice, or more than ``MAX_ARRAY`` indices.
    """
    listed, percent, limit = text.partition("%")
    parts = [_PART.fullmatch(part) for part in listed.split(",")]
    if not all(parts) or (percent and not _LIMIT.fullmatch(limit)):
        raise InvalidJobError(
            f"array {text!r}: must be indices such as 0-9, 1,3,5-7 or 0-15:4, and perhaps the "
            "number of jobs at once, as in 0-9%4"
        )
    indices: list[int] = []
    for part in filter(None, parts):
        first, last, step = int(part[1]), int(part[2] or part[1]), int(part[3] or 1)
        if last < first or step < 1 or last > _MAX_INDEX:
            raise InvalidJobError(
                f"array {text!r}: {part[0]} has no index; write the smaller one first"
            )
        indices += range(first, last + 1, step)[: MAX_ARRAY + 1]
        if len(indices) > MAX_ARRAY:
            raise InvalidJobError(
                f"array {text!r}: has more than {MAX_ARRAY:,} indices; submit several arrays"
            )
    if len(set(indices)) < len(indices):
        raise InvalidJobError(f"array {text!r}: an index is there twice; remove one of them")
    return ArraySpec(indices, int(limit or 0))


def array_jobs(job: pb.Job, spec: ArraySpec) -> list[pb.Job]:
    """Return the jobs of an array: NAME-INDEX, with the index in their environment."""
    jobs = []
    for index in spec.indices:
        one = pb.Job()
        one.CopyFrom(job)
        one.job_id = f"{job.job_id}-{index}"
        one.array, one.array_limit = job.job_id, spec.limit
        one.environment[INDEX] = str(index)
        jobs.append(one)
    return jobs
