"""Case of the policy checks: a small cluster, a trace, and what is predicted of its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import NO_COST, Job

GIB = 2**30
_NAN = float("nan")
_SLOWDOWNS = (None, (1.0,), (_NAN, 1.2), (0.5, 1.1), (1.3, 1.0))


@dataclass(frozen=True, slots=True)
class Case:
    """Input of one simulation.

    Attributes
    ----------
    duration_s : mapping of str to float
        True run time of each job, by id.
    predictions : tuple of RuntimePrediction or None
        What the forecaster answers: run times by the job's number, the rest by its model, since
        jobs of one model have equal needs. None and NaN are missing forecasts.
    """

    cluster: Cluster
    jobs: tuple[Job, ...]
    duration_s: Mapping[str, float]
    predictions: tuple[RuntimePrediction | None, ...]

    def __str__(self) -> str:
        nodes = ", ".join(f"{one.name} {one.devices} x {one.kind}" for one in self.cluster.nodes)
        jobs = "\n".join(f"    {self._described(job)}" for job in self.jobs)
        return f"  cluster: {nodes}\n  jobs:\n{jobs}"

    def _described(self, job: Job) -> str:
        parts = [f"{job.job_id!r} at {job.submit_s:g} s, runs {self.duration_s[job.job_id]:g} s"]
        parts.append(f"{job.gpus} devices" if job.gpus > 1 else "1 device")
        if job.min_gpus:
            parts.append(f"at least {job.min_gpus}")
        if job.max_gpus:
            parts.append(f"at most {job.max_gpus}")
        if job.compute_milli < FULL_DEVICE_MILLI:
            parts.append(f"requests {job.compute_milli / 10:g} % of each")
        if job.memory_bytes:
            parts.append(f"requests {job.memory_bytes / GIB:g} GiB of each")
        if job.kinds:
            parts.append(f"on {' or '.join(job.kinds)}")
        if job.latency_sensitive:
            parts.append("latency-sensitive")
        if job.priority:
            parts.append(f"priority {job.priority}")
        if job.checkpointing != NO_COST:
            parts.append("with checkpoints")
        parts.append(_forecast(_prediction(job, self.predictions)))
        return ", ".join(parts)


class CaseForecaster:
    """Forecaster that answers what a case says, nonsense included."""

    def __init__(self, predictions: Sequence[RuntimePrediction | None]) -> None:
        self._predictions = predictions

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the prediction of each job."""
        return [_prediction(job, self._predictions) for job, _ in requests]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return slowdowns by the jobs' numbers; some are missing, NaN or of a wrong length."""
        return [_SLOWDOWNS[sum(map(_number, jobs)) % len(_SLOWDOWNS)] for _, jobs in requests]


def can_run(job: Job, cluster: Cluster) -> bool:
    """Return whether a cluster has enough devices for a job, if all of them are idle."""
    usable = [node for node in cluster.nodes if not job.kinds or node.kind in job.kinds]
    there = [node.devices for node in usable if node.memory_bytes >= job.memory_bytes]
    return job.fewest_gpus <= sum(there)


def _prediction(
    job: Job, predictions: Sequence[RuntimePrediction | None]
) -> RuntimePrediction | None:
    needs = predictions[sum(map(ord, job.model)) % len(predictions)]
    own = predictions[_number(job) % len(predictions)]
    return needs if needs is None or own is None else needs._replace(runtime_s=own.runtime_s)


def _number(job: Job) -> int:
    return int(job.job_id)


def _forecast(prediction: RuntimePrediction | None) -> str:
    if prediction is None:
        return "no forecast"
    runtime_s, compute_milli, memory_bytes = prediction[:3]
    return f"forecast {runtime_s:g} s, {compute_milli:g} milli, {memory_bytes:g} bytes"
