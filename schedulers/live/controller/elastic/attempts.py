"""Attempts of elastic jobs, as their leaders need to know them."""

from __future__ import annotations

import re
from typing import NamedTuple

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.members import leader_job
from presage.schedulers.live.controller.replayed_state import LiveJob, Stage

FOLDER_NAME = re.compile(r"[0-9]+\.[0-9]+")


class Attempt(NamedTuple):
    """Attempt of an elastic job, as its leader needs to know it.

    Attributes
    ----------
    leader_job : str
        Name of the job for its leader.
    number : int
        Number of the job in the order of submission.
    names : tuple of str
        Workers that are to take part.
    is_ending : bool
        Whether all workers are to leave.
    has_run : bool
        Whether it began to run: it may have workers of an earlier leader.
    """

    job_id: str
    leader_job: str
    number: int
    attempt: int
    least: int
    most: int
    names: tuple[str, ...]
    is_ending: bool
    has_run: bool = False

    @property
    def folder_name(self) -> str:
        """Name of the folder of the leader's files; it matches ``FOLDER_NAME``."""
        return f"{self.number}.{self.attempt}"


def attempts(core: Core) -> list[Attempt]:
    """Return the attempts of elastic jobs that are at nodes."""
    jobs = {job.job_id: job for on_node in core.state.at_node.values() for job in on_node.values()}
    return [_attempt(job) for job in jobs.values() if job.members or job.leaving]


def _attempt(job: LiveJob) -> Attempt:
    spec = job.submitted.job
    return Attempt(
        job.job_id, leader_job(job), job.number, job.attempt, spec.fewest_gpus, spec.most_gpus,
        tuple(member.name for member in job.members), job.stage is Stage.LEAVING,
        job.running_since_s > 0,
    )  # fmt: skip
