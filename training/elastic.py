"""Elastic data-parallel training: workers join, leave and die without losing a step or a sample.

    from presage.training import elastic

    run = elastic.begin(model, optimizer, samples=len(x), batch=64)
    for step in run.steps(epochs=10):
        loss = loss_fn(model(x[step.indices]), y[step.indices])
        loss.backward()
        run.apply(loss)

Started by ``presage elastic run``, each process is one worker of the job; without it, the script
runs as a job of one worker. The loss is the mean over ``step.indices``. ``apply`` sums gradients
over workers and calls ``optimizer.step()``; gradients are removed afterwards.

A worker that leaves before the end, because of a resize, SIGTERM or SIGUSR1, exits in the loop with
status 75.
Code after the loop runs only on workers that were there at the end.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.errors import ElasticError
from presage.training.data_set_grouping import DataSet, check_batch
from presage.training.job_folder import (
    JOB_VARIABLE,
    LEFT,
    STATE_VARIABLE,
    WORKER_VARIABLE,
    JobFolder,
)
from presage.training.report import Report
from presage.training.worker.announcements import SessionOverError
from presage.training.worker.checkpoint import Checkpoint
from presage.training.worker.run import OnResize, Run, SizeSettings, Step
from presage.training.worker.session import Session
from presage.training.worker.single_worker import SingleWorkerSession
from presage.training.worker.training_state import TrainingState

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["OnResize", "Run", "SizeSettings", "Step", "begin"]

VIRTUAL_SHARDS = 8
MAX_DIGEST = 256  # characters of the digest of a data set


def begin(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    samples: int,
    batch: int,
    scheduler: Any = None,
    seed: int = 0,
    deterministic: bool = False,
    virtual_shards: int = VIRTUAL_SHARDS,
    on_resize: OnResize | None = None,
    data_set_digest: str = "",
    checkpoint: Path | None = None,
    checkpoint_interval_s: float = 60.0,
) -> Run:
    """Join the elastic job that this process is a worker of; call it once, with the final model.

    Parameters
    ----------
    model : torch module
        May be wrapped in DistributedDataParallel, for a process group of this worker alone.
    samples : int
        Number of samples of the data set.
    batch : int
        Number of samples of a step, over all workers.
    scheduler : torch learning-rate scheduler, optional
        Stepped after each step of the job.
    deterministic : bool
        Whether the parameters are bitwise equal whatever the number of workers is. Each step is
        computed as ``virtual_shards`` parts, whose gradients are added in a fixed order; this costs
        as many times the communication and, on few workers, smaller batches. At most
        ``virtual_shards`` workers train; others stay ready.
    on_resize : callable, optional
        Receives the number of workers of each generation and returns its :class:`SizeSettings`. It
        must depend on that number only.
    data_set_digest : str
        Digest of the data set, which must be the same for all workers; at most 256 characters.
    checkpoint : Path, optional
        File to continue from if it exists, written every ``checkpoint_interval_s`` seconds, and
        when fewer workers than the job's minimum are left. By default ``elastic.ckpt`` in the
        folder ``PRESAGE_CHECKPOINT``, if that is set.

    Raises
    ------
    SystemExit
        A signal requested this worker to leave while it waited for a leader.
    ElasticError
        An argument is not valid, the checkpoint is corrupt or of another model, optimizer, data set
        or seed, or the leader rejects this worker.
    """
    check_batch(batch, 1)
    _check_process_group(model)
    data_set = DataSet(samples, seed)
    state = TrainingState(model, optimizer, scheduler)
    on_disk = Checkpoint(checkpoint, checkpoint_interval_s)
    shards = virtual_shards if deterministic else 0
    if batch < shards:
        raise ElasticError(f"batch={batch} is less than virtual_shards={shards}")
    if len(data_set_digest) > MAX_DIGEST:
        raise ElasticError(
            f"data_set_digest has {len(data_set_digest)} characters; at most {MAX_DIGEST} fit"
        )
    specification = {
        "model": state.model_digest,
        "optimizer": type(optimizer).__name__,
        "samples": samples,
        "data_set": data_set_digest,
        "batch": batch,
        "seed": seed,
        "virtual_shards": shards,
    }
    state.specification = dict(specification)
    session = _session(specification)
    has_checkpoint = on_disk.restore(state)
    run = Run(
        state, data_set, session, batch=batch, virtual_shards=shards, on_resize=on_resize,
        checkpoint=on_disk, has_checkpoint=has_checkpoint,
    )  # fmt: skip
    try:
        session.start(Report(0, "joining", state.cursor, has_checkpoint))
    except SessionOverError:
        raise SystemExit(LEFT) from None
    run.follow_memory_share()
    return run


def _check_process_group(model: nn.Module) -> None:
    """Reject a model that torch also synchronizes with other workers."""
    group = getattr(model, "process_group", None)  # of DistributedDataParallel
    if group is not None and group.size() > 1:
        raise ElasticError(
            f"the model is wrapped for a process group of {group.size()} ranks, whose number "
            "cannot change; start the script with `presage elastic run`, where each worker is a "
            "group of its own, or pass the model without DistributedDataParallel"
        )


def _session(specification: dict[str, Any]) -> Session | SingleWorkerSession:
    """Return the session of the job in the environment, or of a single worker."""
    job, folder = os.environ.get(JOB_VARIABLE), os.environ.get(STATE_VARIABLE)
    if not job or not folder:
        return SingleWorkerSession()
    name = os.environ.get(WORKER_VARIABLE) or f"{socket.gethostname()}-{os.getpid()}"
    return Session(JobFolder(Path(folder), job), f"{name}.{secrets.token_hex(2)}", specification)
