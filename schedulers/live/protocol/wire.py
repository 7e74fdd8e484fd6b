"""Between the protocol's messages and values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from presage.errors import InvalidJobError
from presage.features.job.job import JobFeatures
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import NO_COST, Checkpointing, Job
from presage.schedulers.live.protocol.submitted_job import GRACE_S, SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.codec import wire as serving_wire
from presage.serving.v1 import prediction_pb2 as pb_serving

MOST_GPUS = 1024  # of one job, on one node
# Of one message to the controller, and of one piece of a node's orders: small, because a server
# holds it before it knows who sends it. What is larger goes in pieces.
MOST_MESSAGE_BYTES = 4 * 1024 * 1024
MOST_JOB_BYTES = 1024 * 1024  # of one job, as it travels
MOST_JOBS = 1_000  # of one Submit


def read_job(row: pb.Job, submit_s: float, where: str) -> SubmittedJob:
    """A job that came in at a time of the cluster's.

    Raises
    ------
    InvalidJobError
        Says what of it cannot be; ``where`` is what the message is called.
    """
    if row.gpus > MOST_GPUS:
        raise InvalidJobError(f"{where}.gpus={row.gpus}, at most {MOST_GPUS} are taken")
    features = _features(row.features, f"{where}.features") if row.HasField("features") else None
    checkpointing = NO_COST
    if row.checkpoint_every_s:
        checkpointing = Checkpointing(row.checkpoint_every_s)
    job = Job(
        row.job_id,
        submit_s,
        gpus=row.gpus or 1,
        model=row.model,
        iterations=row.iterations or (features.job.iterations if features else 0),
        kinds=tuple(row.kinds),
        features=features,
        compute_milli=row.compute_milli or FULL_DEVICE_MILLI,
        memory_bytes=row.memory_bytes,
        latency_sensitive=row.latency_sensitive,
        priority=row.priority,
        user=row.user,
        checkpointing=checkpointing,
    )
    return SubmittedJob(
        job,
        tuple(row.command),
        row.folder,
        dict(row.environment),
        row.grace_s or GRACE_S,
        row.retries,
        row.features.job_id,
    )


def _features(row: pb_serving.Job, where: str) -> JobFeatures:
    found = serving_wire.read_job(row, where)
    # Users name models as they like: what does the same has the same id, and nothing else has.
    alike = pb_serving.Job()
    alike.CopyFrom(row)
    alike.ClearField("job_id")
    alike.ClearField("iterations")
    digest = sha256(alike.SerializeToString(deterministic=True)).hexdigest()
    return replace(found, job=replace(found.job, job_id=digest))


def features_of(submitted: SubmittedJob) -> pb_serving.Job | None:
    """As its user calls them; None of a job without any."""
    if submitted.job.features is None:
        return None
    row = serving_wire.write_job(submitted.job.features)
    row.job_id = submitted.features_id
    return row


def write_job(submitted: SubmittedJob) -> pb.Job:
    """A job as it travels."""
    job = submitted.job
    every_s = job.checkpointing.interval_s
    return pb.Job(
        job_id=job.job_id,
        command=submitted.command,
        folder=submitted.folder,
        environment=submitted.environment,
        gpus=job.gpus,
        kinds=job.kinds,
        latency_sensitive=job.latency_sensitive,
        priority=job.priority,
        user=job.user,
        model=job.model,
        iterations=job.iterations,
        features=features_of(submitted),
        compute_milli=job.compute_milli,
        memory_bytes=job.memory_bytes,
        checkpoint_every_s=every_s if math.isfinite(every_s) else 0.0,
        grace_s=submitted.grace_s,
        retries=submitted.retries,
    )


def to_json(message: Any) -> dict[str, Any]:
    """A message as a JSON object."""
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def job_of_json(row: Mapping[str, Any], submit_s: float) -> SubmittedJob:
    """A job that was written by :func:`to_json`."""
    return read_job(ParseDict(dict(row), pb.Job()), submit_s, "job")


def write_allocations(allocations: Iterable[Sequence[int]]) -> list[pb.Allocation]:
    """Grants of one node, or rows of such: device, thousandths, bytes."""
    return [
        pb.Allocation(device=device, compute_milli=milli, memory_bytes=memory)
        for device, milli, memory in allocations
    ]


def read_allocations(rows: Iterable[pb.Allocation]) -> tuple[Allocation, ...]:
    """As they were written."""
    return tuple(Allocation(row.device, row.compute_milli, row.memory_bytes) for row in rows)


def write_told(kind: str, prediction: RuntimePrediction) -> pb.Told:
    """What is foretold of a job on a kind of device."""
    foretold = math.isfinite(prediction.runtime_s) or prediction.compute_milli < FULL_DEVICE_MILLI
    return pb.Told(
        kind=kind,
        compute_milli=prediction.compute_milli,
        memory_bytes=prediction.memory_bytes,
        runtime_s=prediction.runtime_s,
        promised_s=prediction.promised_s,
        setup_s=prediction.setup_s,
        in_domain=foretold and prediction.in_domain,
        foretold=foretold,
        release_id=prediction.release_id,
    )


def read_told(rows: Sequence[pb.Told]) -> dict[str, RuntimePrediction]:
    """Of each kind."""
    return {
        row.kind: RuntimePrediction(
            row.runtime_s,
            row.compute_milli,
            row.memory_bytes,
            row.in_domain,
            row.setup_s,
            row.promised_s,
            row.release_id,
        )
        for row in rows
    }
