"""Random sets of jobs that share a switch."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from presage.collectives.core.costs import Link, ring_s
from presage.collectives.simulation.phased_job import PhasedJob, overlapping_calls

LINK = Link(latency_s=5e-6, bandwidth_bytes_per_s=12.5e9)  # 100 Gbit/s


def draw_job(name: str, source: random.Random, switch: str, jitter: float) -> PhasedJob:
    """Return a job whose ring takes 0.1 to 1.2 times as long as its computation."""
    ranks = source.choice((4, 8, 16, 32))
    compute_s = math.exp(source.uniform(math.log(0.1), math.log(1.0)))
    ratio = source.uniform(0.1, 1.2)
    total = ratio * compute_s / ring_s(ranks, 1, replace(LINK, latency_s=0.0))
    buckets = source.randint(1, 8)
    sizes = [int(total * source.uniform(0.5, 1.5) / buckets) for _ in range(buckets)]
    # 0: all AllReduces after the computation; 2/3: DDP's overlap with the backward pass.
    calls = overlapping_calls(compute_s, sizes, source.choice((0.0, 2 / 3)))
    start_s = source.uniform(0, compute_s)
    return PhasedJob(name, ranks, (switch,), LINK, calls, start_s, jitter)


def job_set(
    seed: int, jobs: int = 4, *, jitter: float = 0.03, switch: str = "s"
) -> list[PhasedJob]:
    """Return jobs with ids in the order of their starts."""
    source = random.Random(seed)
    drawn = [draw_job(f"job{i}", source, switch, jitter) for i in range(jobs)]
    drawn.sort(key=lambda job: job.start_s)
    return [replace(job, job_id=f"job{i}") for i, job in enumerate(drawn)]
