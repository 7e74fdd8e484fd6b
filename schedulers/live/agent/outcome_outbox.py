"""Measured outcomes of tasks, stored on disk until the prediction service accepts them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.live.agent.node_task import Name, NodeTask
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.agent.tasks.file_names import task_name
from presage.schedulers.live.agent.tasks.task import BY_WEIGHT, FREE
from presage.schedulers.live.protocol.wire import write_features
from presage.schedulers.v1 import cluster_pb2 as cluster_pb
from presage.serving.outcomes.outcome import Reported
from presage.serving.server.log import log
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.files.atomic_file import replace_bytes
from presage.system.files.regular_file import read_small

OUTCOMES = "outcomes"  # in the agent's state folder
MIN_TIMED_S = 5.0  # steps are timed over at least this time
MAX_UNNAMED = 0.1  # fraction of a run co-located with tasks that its outcome cannot name
MAX_BATCH, MAX_BYTES = 256, 2 * 1024 * 1024  # half of the size limit of a message
MAX_STORED = 10_000  # while the service is away; the newest are the most informative
_MODES = {"cgroup v1": "cpu-quota", "cgroup v2": "cpu-quota", "mps": "mps"}


class Service(Protocol):
    """Part of :class:`presage.serving.client.client.PresageClient` that is used here."""

    def report_rows(self, rows: list[pb.Outcome]) -> Reported:
        """Report outcomes; those that are accepted are on the server's disk."""
        ...


def make_outcome(
    task: NodeTask,
    device: Slot,
    tasks: Mapping[Name, NodeTask],
    agent_id: str,
    enforcement: str,
    ended_at_unix_s: float,
) -> pb.Outcome | None:
    """Return the outcome to report for a task that ended, or None if there is nothing to report.

    Nothing is reported for a job without features, which cannot be predicted, nor for a task that
    was ended early. ``release_id`` is the release whose forecast, for this kind of device, the
    controller used to place this attempt; "" if that forecast came from no release.

    An outcome describes one share and one set of co-located jobs. Step time, run time and
    utilization are therefore left out if these do not cover the whole run: the share changed, the
    task was paused, co-located tasks that the outcome cannot name ran for more than
    ``MAX_UNNAMED`` of the time, or an earlier agent observed a part of the run. Peak memory is
    always reported.

    Parameters
    ----------
    tasks : mapping
        All tasks of the node.
    enforcement : str
        How its share was enforced: ``enforcement`` of
        :class:`presage.schedulers.live.agent.tasks.task.ShimState`.
    """
    observation, job = task.observation, write_features(task.submitted)
    if observation is None or observation.exit is None or job is None or not task.allocations:
        return None
    failure = _failure(observation.exit)
    if failure is None:
        return None
    colocated = _named_colocated(task, tasks, observation.ran_s)
    row = pb.Outcome(
        job=job,
        device=pb.Device(kind=device.kind),
        share=_share(task, enforcement),
        release_id=_release_id(task, device.kind),
        finished_at_unix_s=ended_at_unix_s,
        failure=failure,
        idempotency_key=f"{agent_id}/{task.order.submission_id}/{task_name(*task.name)}",
        colocated_jobs=[
            pb.Outcome.ColocatedJob(
                job=write_features(other.submitted), share=_share(other, enforcement)
            )
            for other in colocated
        ],
    )
    if observation.peak_memory_bytes:
        row.memory_peak_bytes = observation.peak_memory_bytes // len(task.allocations)
    named_s = sum(task.colocated_s[other.name] for other in colocated)
    unnamed_s = sum(task.colocated_s.values()) - named_s
    is_described = unnamed_s <= MAX_UNNAMED * observation.ran_s
    if task.has_constant_share and not task.is_partly_observed and is_described:
        _add_use(row, task, observation.ran_s)
    return row


def _release_id(task: NodeTask, kind: str) -> str:
    """Return the release that predicted a task on a kind of device, from the task's order."""
    return next((row.release_id for row in task.order.predictions if row.kind == kind), "")


def _named_colocated(
    task: NodeTask, tasks: Mapping[Name, NodeTask], ran_s: float
) -> list[NodeTask]:
    """Return the co-located tasks that an outcome names: with features, for most of the time."""
    if task.is_partly_observed:
        return []
    return [
        other
        for other in tasks.values()
        if task.colocated_s.get(other.name, 0.0) > ran_s / 2
        and other.submitted.job.features is not None
    ]


def _add_use(row: pb.Outcome, task: NodeTask, ran_s: float) -> None:
    if task.busy_s and ran_s > MIN_TIMED_S:
        row.compute_utilization = min(1.0, task.busy_s / ran_s)
    if not row.failure:
        _add_times(row, task, ran_s)


def _add_times(row: pb.Outcome, task: NodeTask, ran_s: float) -> None:
    if not task.order.elapsed_s and not task.order.done:  # no other attempt has run
        row.runtime_s = ran_s
    if task.first_sample is None or task.last_sample is None:
        return
    (first_s, first), (last_s, last) = task.first_sample, task.last_sample
    steps = (last - first) * task.submitted.job.iterations
    if steps >= 1 and last_s - first_s >= MIN_TIMED_S:
        row.step_time_median_s = (last_s - first_s) / steps


def _failure(task_exit: cluster_pb.Exit) -> str | None:
    """Return the failure kind for an outcome; None if the task was ended early or lost."""
    if task_exit.finished:
        return ""
    if task_exit.out_of_memory:
        return "out-of-memory"
    return None if task_exit.requested or task_exit.lost else "crash"


def _share(task: NodeTask, enforcement: str) -> pb.Share:
    """Return a task's share for an outcome: the full device unless a hard limit was enforced.

    Under weights a task may use all that co-located tasks leave.
    """
    is_limited = enforcement != FREE and not enforcement.endswith(BY_WEIGHT)
    milli = task.allocations[0].compute_milli if is_limited else FULL_DEVICE_MILLI
    if milli == FULL_DEVICE_MILLI and not task.colocated_s and not task.is_partly_observed:
        return pb.Share(fraction=1.0, mode="exclusive")
    return pb.Share(fraction=milli / FULL_DEVICE_MILLI, mode=_MODES.get(enforcement, "time-slice"))


class Outbox:
    """Queue on disk of outcomes that the service has not accepted yet, one file each.

    Parameters
    ----------
    state : Path
        State folder of the agent.
    service : Service
        Receiver of the outcomes.
    """

    def __init__(self, state: Path, service: Service) -> None:
        self._folder, self._service = state / OUTCOMES, service

    def put(self, outcome: pb.Outcome, name: str) -> None:
        """Store an outcome, unless the disk is full or it is too large for a message."""
        raw = outcome.SerializeToString()
        if len(raw) > MAX_BYTES:
            log(logging.WARNING, "an outcome is too large to report", name=name, bytes=len(raw))
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            replace_bytes(self._folder / name, raw)
        except OSError as error:
            log(logging.WARNING, "an outcome was not stored", error=str(error))

    def send(self) -> int:
        """Send a batch of stored outcomes, oldest first; return how many were removed.

        Outcomes are removed once accepted or rejected for good. Beyond ``MAX_STORED`` the oldest
        are dropped, whether they can be sent or not.

        Raises
        ------
        PresageError
            They cannot be sent now.
        """
        paths = sorted(self._folder.glob("[!.]*"), key=lambda path: path.lstat().st_mtime_ns)
        for path in paths[:-MAX_STORED]:
            path.unlink(missing_ok=True)
        rows: list[pb.Outcome] = []
        sent: list[Path] = []
        size = 0
        for path in paths[-MAX_STORED:][:MAX_BATCH]:
            try:
                raw = read_small(path, MAX_BYTES)
            except OSError as error:  # a job of this account has put something else there
                log(logging.WARNING, "an outcome cannot be read", name=path.name, error=str(error))
                with suppress(OSError):
                    path.unlink()
                continue
            if sent and size + len(raw) > MAX_BYTES:
                break
            try:
                rows.append(pb.Outcome.FromString(raw))
                sent.append(path)
                size += len(raw)
            except DecodeError:
                path.unlink(missing_ok=True)
        if not rows:
            return 0
        reported = self._service.report_rows(rows)
        for position, why in reported.refused.items():
            log(logging.WARNING, "an outcome was rejected", name=sent[position].name, why=str(why))
        for path in sent:
            path.unlink(missing_ok=True)
        return len(sent)
