"""Status of an elastic job, as its leader answers it to operators."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from presage.training.job_management import Leader
from presage.training.leader.worker import Worker, worker_name


def job_status(leader: Leader) -> dict[str, Any]:
    """Return the state of a job as JSON content.

    Returns
    -------
    dict
        Among others ``done`` and ``saved``, the fractions of all epochs (0 to 1) that are committed
        and that are in the last checkpoint; and ``pace``, None until it is measured over at least 2
        seconds of the current generation: ``workers``, the number of workers; ``per_s``, the
        fraction of all epochs that they commit in a second; ``seconds``, the duration of the
        measurement. ``capacity`` is the largest number of workers that train at once, by the batch
        and the virtual shards of the job.
    """
    membership, progress = leader.membership, leader.progress
    members = membership.members()
    reached = [max(m.report.cursor, progress.of(m.worker_id).cursor) for m in members]
    size = membership.generation.size if membership.generation else 0
    pace = progress.pace(size, leader.current)
    return {
        "op": "status",
        "job": leader.job,
        "state": leader.outcome or _state(leader),
        "reason": leader.reason or leader.problem,
        "generation": leader.current,
        "workers": [_worker(one) for one in membership.workers.values()],
        "size": size,
        "desired": membership.desired,
        "names": None if membership.names is None else sorted(membership.names),
        "min": leader.config.min_workers,
        "max": leader.config.max_workers,
        "capacity": membership.capacity,
        "committed": leader.committed.to_message(),
        "progress": max([leader.committed, *reached]).to_message(),
        "done": max((progress.of(m.worker_id).done for m in members), default=0.0),
        "saved": progress.saved,
        "pace": None if pace is None else asdict(pace),
        "resize_requests": leader.resize_requests,
        "events": list(leader.events),
    }


def _worker(worker: Worker) -> dict[str, str]:
    return {
        "id": worker.worker_id,
        "name": worker_name(worker.worker_id),
        "state": str(worker.state),
        "phase": worker.report.phase,
    }


def _state(leader: Leader) -> str:
    """Return "starting", "running" or "waiting" (for workers, or for the journal)."""
    if leader.membership.generation is None:
        return "starting"
    return "waiting" if leader.membership.is_short() or leader.problem else "running"
