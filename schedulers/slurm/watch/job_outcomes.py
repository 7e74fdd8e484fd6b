"""Outcomes of ended jobs, for the prediction service to learn from."""

from __future__ import annotations

from presage.features.device.device import Share
from presage.schedulers.slurm.watch.slurm_job import SlurmJob
from presage.serving.codec.wire_values import write_share
from presage.serving.v1 import prediction_pb2 as pb

# Other ends (cancelled, preempted, node failure) say nothing about the job, and are not reported.
FAILURES = {
    "COMPLETED": "",
    "FAILED": "crash",
    "TIMEOUT": "timeout",
    "OUT_OF_MEMORY": "out-of-memory",
}
_TOLERANCE_S = 2  # Slurm's times are whole seconds


def outcome_key(job: SlurmJob, cluster: str) -> str:
    """Return the idempotency key of one run of a job.

    Job ids start at 1 again in a new installation, so the key contains the submission's time.
    """
    return f"slurm/{cluster}/{job.submitted_unix_s}/{job.job_id}/{job.restarts}"


def make_outcome(job: SlurmJob, features: bytes, cluster: str) -> pb.Outcome | None:
    """Return the outcome of an ended job; None if its end says nothing about it.

    The run time is left out for a job that failed or was suspended.

    Parameters
    ----------
    features : bytes
        Serialized ``presage.v1.Job``.
    cluster : str
        ClusterName of slurm.conf.
    """
    failure = FAILURES.get(job.state)
    if failure is None or not job.started_unix_s:
        return None
    row = pb.Outcome(
        job=pb.Job.FromString(features),
        device=pb.Device(kind=job.note.device),
        share=write_share(_share(job)),
        release_id=job.note.release_id,
        finished_at_unix_s=job.ended_unix_s,
        failure=failure,
        idempotency_key=outcome_key(job, cluster),
    )
    elapsed_s = job.ended_unix_s - job.started_unix_s
    if not failure:
        if abs(elapsed_s - job.used_s) > _TOLERANCE_S:
            return None  # suspended: nothing was measured
        row.runtime_s = elapsed_s
    return row


def _share(job: SlurmJob) -> Share:
    if job.note.share == 1:
        return Share()
    return Share(job.note.share, "time-slice")
