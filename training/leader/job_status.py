"""Status of an elastic job, as its leader answers it to operators."""

from __future__ import annotations

from typing import Any

from presage.training.data_set_grouping import Cursor
from presage.training.job_management import Leader


def job_status(leader: Leader) -> dict[str, Any]:
    """Return the state of a job as JSON content."""
    membership = leader.membership
    members = membership.members()
    reached = [max(m.report.cursor, leader.progress.get(m.worker_id, Cursor())) for m in members]
    return {
        "op": "status",
        "job": leader.job,
        "state": leader.outcome or _state(leader),
        "reason": leader.reason or leader.problem,
        "generation": leader.current,
        "workers": [
            {"id": one.worker_id, "state": str(one.state), "phase": one.report.phase}
            for one in membership.workers.values()
        ],
        "size": membership.generation.size if membership.generation else 0,
        "desired": membership.desired,
        "min": leader.config.min_workers,
        "max": leader.config.max_workers,
        "committed": leader.committed.to_message(),
        "progress": max([leader.committed, *reached]).to_message(),
        "resize_requests": leader.resize_requests,
        "events": list(leader.events),
    }


def _state(leader: Leader) -> str:
    """Return "starting", "running" or "waiting" (for workers, or for the journal)."""
    if leader.membership.generation is None:
        return "starting"
    is_short = len(leader.membership.members()) < leader.config.min_workers
    return "waiting" if is_short or leader.problem else "running"
