"""Division of a device among the jobs on it: memory by requirement S4, compute by forecasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.policies.elastic.memory_share import memory_share_bytes


class Sharer(NamedTuple):
    """Job on a device.

    Attributes
    ----------
    bound_bytes : int
        Predicted upper bound of its memory on the device.
    compute_milli : int
        Predicted compute that it uses, in thousandths of the device.
    fixed : Allocation or None
        Allocation that cannot be changed.
    """

    bound_bytes: int
    compute_milli: int
    fixed: Allocation | None = None


def worker_bound_bytes(job: Job, prediction: RuntimePrediction, size: int) -> int:
    """Return the upper bound of the memory of a job's worker if the job has ``size`` workers.

    The forecast is that of the job as requested. Its batch is constant, so with fewer workers each
    has more samples, and needs memory at most in proportion to them.
    """
    return math.ceil(prediction.memory_bytes * max(1.0, job.gpus / size))


def divide_device(full: Allocation, sharers: Sequence[Sharer]) -> list[Allocation] | None:
    """Return the allocation of each of several jobs on a device; None if they do not fit.

    Memory is divided equally, except that no job gets less than its bound. Compute is divided in
    proportion to its predicted use.

    Parameters
    ----------
    full : Allocation
        All of the device.
    """
    fixed = [sharer.fixed for sharer in sharers if sharer.fixed is not None]
    memory_bytes = full.memory_bytes - sum(one.memory_bytes for one in fixed)
    milli = full.compute_milli - sum(one.compute_milli for one in fixed)
    others = [i for i, sharer in enumerate(sharers) if sharer.fixed is None]
    shares = _memory_shares([sharers[i].bound_bytes for i in others], memory_bytes)
    if shares is None or milli < len(others):
        return None
    parts = _proportional([sharers[i].compute_milli for i in others], milli)
    chosen = {
        i: Allocation(full.device, part, share)
        for i, part, share in zip(others, parts, shares, strict=True)
    }
    return [sharer.fixed or chosen[i] for i, sharer in enumerate(sharers)]


def _memory_shares(bounds: Sequence[int], capacity_bytes: int) -> list[int] | None:
    """Return the share of each job, the largest bound served first; None if they do not fit."""
    shares, left = [0] * len(bounds), capacity_bytes
    order = sorted(range(len(bounds)), key=lambda i: -bounds[i])
    for rank, i in enumerate(order, 1):
        shares[i] = memory_share_bytes(bounds[i], left, [bounds[j] for j in order[rank:]])
        if not shares[i]:
            return None
        left -= shares[i]
    return shares


def _proportional(uses: Sequence[int], milli: int) -> list[int]:
    """Return parts of at least 1 that sum to ``milli``."""
    spare, total = milli - len(uses), sum(uses)
    parts = [1 + spare * use // total for use in uses]
    return [parts[0] + milli - sum(parts), *parts[1:]] if parts else []
