"""What jobs really did, told to the prediction service: kept on disk until it has taken it."""

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
from presage.schedulers.live.protocol.wire import features_of
from presage.schedulers.v1 import cluster_pb2 as cluster_pb
from presage.serving.outcomes.outcome import Reported
from presage.serving.server.log import log
from presage.serving.v1 import prediction_pb2 as pb
from presage.system.atomic_file import replace_bytes
from presage.system.regular_file import read_small

OUTCOMES = "outcomes"  # in the agent's state folder
LEAST_S = 5.0  # that steps are timed for
MOST_UNSAID = 0.1  # of a task's time, beside tasks that its outcome does not name
MOST_TOGETHER, MOST_BYTES = 256, 2 * 1024 * 1024  # half of what a message may have
MOST_KEPT = 10_000  # of a service that is away: the newest say most
_MODES = {"cgroup v1": "cpu-quota", "cgroup v2": "cpu-quota", "mps": "mps"}


class Service(Protocol):
    """What :class:`presage.serving.client.client.PresageClient` is here."""

    def report_rows(self, rows: list[pb.Outcome]) -> Reported:
        """Tell what happened; what was accepted is on the server's disk."""
        ...


def outcome_of(
    task: NodeTask,
    device: Slot,
    tasks: Mapping[Name, NodeTask],
    agent_id: str,
    held: str,
    ended_at_unix_s: float,
) -> pb.Outcome | None:
    """Return the outcome to report of a task that ended, or None if there is nothing to report.

    Nothing is reported of a job without features, which cannot be predicted, nor of a task that was
    ended early. ``release_id`` is the release whose forecast, for this kind of device, the
    controller placed this attempt by; "" where that forecast came from no release.

    The outcome is judged as one share and one set of co-located jobs. Step time, run time and
    utilization are therefore left out if that does not describe the whole run: the share changed,
    the task was paused, co-located tasks that the outcome cannot name ran for more than
    ``MOST_UNSAID`` of the time, or an earlier agent saw a part of the run. Peak memory is always
    reported.

    Parameters
    ----------
    tasks : mapping
        All that are on the node.
    held : str
        What held it to its share, as :class:`presage.schedulers.live.agent.tasks.task.ShimState`
        has it.
    """
    seen, job = task.seen, features_of(task.submitted)
    if seen is None or seen.exit is None or job is None or not task.allocations:
        return None
    failure = _failure(seen.exit)
    if failure is None:
        return None
    beside = _beside(task, tasks, seen.ran_s)
    row = pb.Outcome(
        job=job,
        device=pb.Device(kind=device.kind),
        share=_share(task, held),
        release_id=_release_id(task, device.kind),
        finished_at_unix_s=ended_at_unix_s,
        failure=failure,
        idempotency_key=f"{agent_id}/{task.order.submission}/{task_name(*task.name)}",
        neighbours=[
            pb.Outcome.Neighbour(job=features_of(of.submitted), share=_share(of, held))
            for of in beside
        ],
    )
    if seen.peak_memory_bytes:
        row.memory_peak_bytes = seen.peak_memory_bytes // len(task.allocations)
    unsaid_s = sum(task.beside.values()) - sum(task.beside[of.name] for of in beside)
    if task.steady and not task.in_part and unsaid_s <= MOST_UNSAID * seen.ran_s:
        _add_use(row, task, seen.ran_s)
    return row


def _release_id(task: NodeTask, kind: str) -> str:
    """Release that predicted a task on a kind of device, as the controller sent with its order."""
    return next((told.release_id for told in task.order.told if told.kind == kind), "")


def _beside(task: NodeTask, tasks: Mapping[Name, NodeTask], ran_s: float) -> list[NodeTask]:
    """Return the co-located tasks that an outcome names: with features, for most of the time."""
    if task.in_part:
        return []
    return [
        of
        for of in tasks.values()
        if task.beside.get(of.name, 0.0) > ran_s / 2 and of.submitted.job.features is not None
    ]


def _add_use(row: pb.Outcome, task: NodeTask, ran_s: float) -> None:
    if task.busy_s and ran_s > LEAST_S:
        row.compute_utilization = min(1.0, task.busy_s / ran_s)
    if not row.failure:
        _add_times(row, task, ran_s)


def _add_times(row: pb.Outcome, task: NodeTask, ran_s: float) -> None:
    if not task.order.elapsed_s and not task.order.done:  # no other attempt has run
        row.runtime_s = ran_s
    if task.first is None or task.last is None:
        return
    (first_s, first), (last_s, last) = task.first, task.last
    steps = (last - first) * task.submitted.job.iterations
    if steps >= 1 and last_s - first_s >= LEAST_S:
        row.step_time_median_s = (last_s - first_s) / steps


def _failure(how: cluster_pb.Exit) -> str | None:
    """As outcomes have it; None of a task that was ended, and of one that nobody ended."""
    if how.finished:
        return ""
    if how.out_of_memory:
        return "out-of-memory"
    return None if how.asked or how.lost else "crash"


def _share(task: NodeTask, held: str) -> pb.Share:
    """By weights a task has all that its neighbours leave: its share is no part of the device."""
    held_to_it = held != FREE and not held.endswith(BY_WEIGHT)
    milli = task.allocations[0].compute_milli if held_to_it else FULL_DEVICE_MILLI
    if milli == FULL_DEVICE_MILLI and not task.beside and not task.in_part:
        return pb.Share(fraction=1.0, mode="exclusive")
    return pb.Share(fraction=milli / FULL_DEVICE_MILLI, mode=_MODES.get(held, "time-slice"))


class Outbox:
    """Outcomes that the service has not taken yet, a file each.

    Parameters
    ----------
    state : Path
        The agent's folder.
    service : Service
        Who is told.
    """

    def __init__(self, state: Path, service: Service) -> None:
        self._folder, self._service = state / OUTCOMES, service

    def put(self, outcome: pb.Outcome, name: str) -> None:
        """Keep one; a disk that is full keeps none, nor is one kept that no message can hold."""
        raw = outcome.SerializeToString()
        if len(raw) > MOST_BYTES:
            log(logging.WARNING, "an outcome is too large to be told", name=name, bytes=len(raw))
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            replace_bytes(self._folder / name, raw)
        except OSError as error:
            log(logging.WARNING, "an outcome was not kept", error=str(error))

    def send(self) -> int:
        """Tell those that are kept, oldest first; how many it took, or will never take.

        Of too many the newest are kept, whether they can be told or not.

        Raises
        ------
        PresageError
            It cannot be told now.
        """
        paths = sorted(self._folder.glob("[!.]*"), key=lambda path: path.lstat().st_mtime_ns)
        for path in paths[:-MOST_KEPT]:
            path.unlink(missing_ok=True)
        rows: list[pb.Outcome] = []
        sent: list[Path] = []
        size = 0
        for path in paths[-MOST_KEPT:][:MOST_TOGETHER]:
            try:
                raw = read_small(path, MOST_BYTES)
            except OSError as error:  # no file of ours: a job of this account has put it there
                log(logging.WARNING, "an outcome cannot be read", name=path.name, error=str(error))
                with suppress(OSError):
                    path.unlink()
                continue
            if sent and size + len(raw) > MOST_BYTES:
                break
            try:
                rows.append(pb.Outcome.FromString(raw))
                sent.append(path)
                size += len(raw)
            except DecodeError:
                path.unlink(missing_ok=True)
        if not rows:
            return 0
        told = self._service.report_rows(rows)
        for position, why in told.refused.items():
            log(logging.WARNING, "an outcome was refused", name=sent[position].name, why=str(why))
        for path in sent:
            path.unlink(missing_ok=True)
        return len(sent)
