"""Selection of the jobs of a list by user, node and state."""

from __future__ import annotations

from collections.abc import Iterable

from presage.errors import InvalidRequestError
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.replayed_state import ENDED, LiveJob, Stage
from presage.schedulers.live.controller.status_messages import job_phase
from presage.schedulers.live.protocol.job_states import HELD, STATES, phase_name
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.known_names import did_you_mean


def check_states(states: Iterable[str]) -> None:
    """Raise InvalidRequestError for a name that is no state of jobs."""
    for name in states:
        if name not in STATES:
            raise InvalidRequestError(
                f"{name[:64]!r} is no state of jobs; {did_you_mean(name[:64], STATES)}"
            )


def select_jobs(core: Core, jobs: Iterable[LiveJob], request: pb.ListRequest) -> list[LiveJob]:
    """Return the jobs that a request selects, in the same order."""
    states = frozenset(request.states)
    return [
        job
        for job in jobs
        if (not request.user or job.message.user == request.user)
        and (not request.node or request.node in _nodes(job))
        and (not states or _state(core, job) in states)
    ]


def _state(core: Core, job: LiveJob) -> str:
    is_held = job.held and job.stage is Stage.WAITING
    return HELD if is_held else phase_name(job_phase(core, job))


def _nodes(job: LiveJob) -> list[str]:
    """Return the nodes of a job, or the last ones of a job that is over; none if it waits."""
    if job.stage not in ENDED:
        return job.nodes
    return list(job.member_nodes.values()) or [job.node]
