"""Conversion between messages of the protocol and domain values.

The codec of features imports numpy. It is imported at the first job with features, so that commands
that only query a controller start faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from google.protobuf.json_format import MessageToDict

from presage.errors import InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import NO_COST, Checkpointing, Job
from presage.schedulers.live.protocol.submitted_job import GRACE_S, SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.v1 import prediction_pb2 as pb_serving

MAX_GPUS = 1024  # per job
# Limit of a message to the controller, and of a piece of a node's orders. Small, because a server
# holds a message before it has authenticated the sender. Larger content is sent in pieces.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_JOB_BYTES = 1024 * 1024  # per job, serialized
MAX_JOBS = 1_000  # per Submit request


def read_job(row: pb.Job, submit_s: float, where: str) -> SubmittedJob:
    """Return the job in a message, submitted at a time of the cluster's clock.

    Raises
    ------
    InvalidJobError
        A field is not valid; ``where`` is the name of the message in the error.
    """
    for name in ("gpus", "max_gpus"):
        if getattr(row, name) > MAX_GPUS:
            raise InvalidJobError(f"{where}.{name}={getattr(row, name)}, must be <= {MAX_GPUS}")
    features = _features(row.features, f"{where}.features") if row.HasField("features") else None
    checkpointing = NO_COST
    if row.checkpoint_interval_s:
        checkpointing = Checkpointing(row.checkpoint_interval_s)
    job = Job(
        row.job_id,
        submit_s,
        gpus=row.gpus or 1,
        min_gpus=row.min_gpus,
        max_gpus=row.max_gpus,
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
        row.time_limit_s,
        tuple(row.after),
        tuple(row.after_any),
        row.array,
        row.array_limit,
        row.hold,
    )


def _features(row: pb_serving.Job, where: str) -> JobFeatures:
    from presage.serving.codec.wire_values import read_job as read_features

    found = read_features(row, where)
    # Users name models freely: equal features get the same id, and different ones do not.
    anonymous = pb_serving.Job()
    anonymous.CopyFrom(row)
    anonymous.ClearField("job_id")
    anonymous.ClearField("iterations")
    digest = sha256(anonymous.SerializeToString(deterministic=True)).hexdigest()
    return replace(found, job=replace(found.job, job_id=digest))


def write_features(submitted: SubmittedJob) -> pb_serving.Job | None:
    """Return the features with the user's name for them; None for a job without features."""
    if submitted.job.features is None:
        return None
    from presage.serving.codec.wire_values import write_job as write_job_features

    row = write_job_features(submitted.job.features)
    row.job_id = submitted.features_id
    return row


def write_job(submitted: SubmittedJob) -> pb.Job:
    """Return the message for a job."""
    job = submitted.job
    every_s = job.checkpointing.interval_s
    return pb.Job(
        job_id=job.job_id,
        command=submitted.command,
        folder=submitted.folder,
        environment=submitted.environment,
        gpus=job.gpus,
        min_gpus=job.min_gpus,
        max_gpus=job.max_gpus,
        kinds=job.kinds,
        latency_sensitive=job.latency_sensitive,
        priority=job.priority,
        user=job.user,
        model=job.model,
        iterations=job.iterations,
        features=write_features(submitted),
        compute_milli=job.compute_milli,
        memory_bytes=job.memory_bytes,
        checkpoint_interval_s=every_s if math.isfinite(every_s) else 0.0,
        grace_s=submitted.grace_s,
        retries=submitted.retries,
        time_limit_s=submitted.time_limit_s,
        after=submitted.after,
        after_any=submitted.after_any,
        array=submitted.array,
        array_limit=submitted.array_limit,
        hold=submitted.hold,
    )


def to_json(message: Any) -> dict[str, Any]:
    """Return a message as a JSON object."""
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def write_allocations(allocations: Iterable[Sequence[int]]) -> list[pb.Allocation]:
    """Return messages for allocations on one node: rows of device, milli-devices, bytes."""
    return [
        pb.Allocation(device=device, compute_milli=milli, memory_bytes=memory)
        for device, milli, memory in allocations
    ]


def read_allocations(rows: Iterable[pb.Allocation]) -> tuple[Allocation, ...]:
    """Return the allocations in messages."""
    return tuple(Allocation(row.device, row.compute_milli, row.memory_bytes) for row in rows)


def write_prediction(kind: str, prediction: RuntimePrediction) -> pb.Prediction:
    """Return the message for the prediction of a job on a kind of device."""
    is_predicted = (
        math.isfinite(prediction.runtime_s) or prediction.compute_milli < FULL_DEVICE_MILLI
    )
    return pb.Prediction(
        kind=kind,
        compute_milli=prediction.compute_milli,
        memory_bytes=prediction.memory_bytes,
        runtime_s=prediction.runtime_s,
        slo_s=prediction.slo_s,
        setup_s=prediction.setup_s,
        in_domain=is_predicted and prediction.in_domain,
        is_predicted=is_predicted,
        release_id=prediction.release_id,
    )


def read_predictions(rows: Sequence[pb.Prediction]) -> dict[str, RuntimePrediction]:
    """Return the predictions in messages, by kind of device."""
    return {
        row.kind: RuntimePrediction(
            row.runtime_s,
            row.compute_milli,
            row.memory_bytes,
            row.in_domain,
            row.setup_s,
            row.slo_s,
            row.release_id,
        )
        for row in rows
    }
