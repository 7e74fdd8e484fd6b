"""Clusters of the benchmark: journal records of nodes whose devices are all in use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.live.controller.journal.records import (
    ClusterCreated,
    LeaseChanged,
    NodeJoined,
    Placed,
    Record,
    Started,
    Submitted,
)
from presage.schedulers.v1 import cluster_pb2 as pb

DEVICES = 10
KIND, MEMORY_BYTES = "h100", 80 * 2**30
JOB_BYTES = 60 * 2**30
LEASE_S = 120.0
CLUSTER_ID = "scale"


class FixedForecaster:
    """Forecaster of run times that depend on the model only."""

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction]:
        """Return the predictions."""
        return [
            RuntimePrediction(3600.0 + 60 * (int(job.model) % 7), 700, JOB_BYTES, high_s=7200.0)
            for job, _ in requests
        ]

    def slowdowns(self, requests: Sequence[tuple[str, tuple[Job, ...]]]) -> list[list[float]]:
        """Return no slowdowns."""
        return [[1.0] * len(jobs) for _, jobs in requests]


def make_cache() -> PredictionCache:
    """Return a cache of these forecasts, as a controller has one."""
    return PredictionCache(FixedForecaster)


def cluster_records(nodes: int, now_s: float, grace_s: float = 30.0) -> Iterator[Record]:
    """Yield the records of nodes, and of a running job on each device."""
    yield ClusterCreated(CLUSTER_ID, now_s)
    yield LeaseChanged(LEASE_S, now_s)
    now_unix_s = time.time()
    for node in range(nodes):
        yield NodeJoined(
            f"n{node}", f"n{node}", [[KIND, MEMORY_BYTES] for _ in range(DEVICES)], now_s
        )
        for device in range(DEVICES):
            job_id, number = job_name(node, device), node * DEVICES + device
            row = {
                "jobId": job_id, "command": ["true"], "model": str(number % 40),
                "iterations": "100", "latencySensitive": number % 10 < 3, "graceS": grace_s,
            }  # fmt: skip
            allocation = [device, 700, JOB_BYTES]
            yield Submitted(job_id, row, now_s, now_unix_s)
            yield Placed(job_id, 1, f"n{node}", [allocation], [], now_s)
            yield Started(job_id, 1, now_s, now_unix_s)


def job_name(node: int, device: int) -> str:
    """Return the name of the job on a device."""
    return f"job-{node}-{device}"


def whole_report(
    node: int, number: int, version: int, ran_s: float, *, ended: bool = False
) -> pb.NodeReport:
    """Return a whole report; with ``ended`` the jobs have left the node with a checkpoint."""
    return pb.NodeReport(
        node=f"n{node}", agent_id=f"n{node}", number=number, commands_version=version,
        devices=[pb.Device(kind=KIND, memory_bytes=MEMORY_BYTES)] * DEVICES,
        supports_chunks=True, cluster_id=CLUSTER_ID,
        tasks=[
            pb.Task(
                job_id=job_name(node, device), attempt=1, ran_s=ran_s, usage_milli=600,
                phase=pb.TASK_ENDED if ended else pb.TASK_RUNNING, saved=0.1,
                done=min(0.9, ran_s / 3600), memory_bytes=JOB_BYTES, peak_memory_bytes=JOB_BYTES,
                exit=pb.Exit(requested=True) if ended else None,
                allocations=[
                    pb.Allocation(device=device, compute_milli=700, memory_bytes=JOB_BYTES)
                ],
            )
            for device in range(DEVICES)
        ],
    )  # fmt: skip
