"""Watcher: extends limits of running jobs, and reports the outcomes of ended ones.

It keeps no state that matters: limits and notes are in Slurm, outcomes on disk and, once reported,
known to the service by their keys. So it may be killed and restarted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import Protocol

from presage.errors import PresageError, ServiceError
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.watch.ended_jobs import EndedJobs
from presage.schedulers.slurm.watch.job_outcomes import make_outcome, outcome_key
from presage.schedulers.slurm.watch.slurm_job import ENDED, SlurmJob
from presage.schedulers.slurm.watch.time_limits import Change, extensions, restorations
from presage.serving.server.log import log
from presage.serving.v1 import prediction_pb2 as pb

HEARTBEAT = "watcher"  # file in the state folder, touched after each pass
STALE_S = 60.0
_MAX_KNOWN = 100_000
_PRUNE_S = 24 * 3600.0


class JobQueue(Protocol):
    """Part of :class:`presage.schedulers.slurm.watch.slurm_job.Slurm` that is used here."""

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs with a note."""
        ...

    def set_limit(self, job: SlurmJob, minutes: int | None, note: JobNote) -> None:
        """Set the time limit and the note of a job."""
        ...


class OutcomeQueue(Protocol):
    """Part of :class:`presage.schedulers.live.agent.outcome_outbox.Outbox` that is used here."""

    def put(self, outcome: pb.Outcome, name: str) -> None:
        """Store an outcome."""
        ...

    def send(self) -> int:
        """Send stored outcomes; return how many were removed."""
        ...


class Watcher:
    """One pass after another over the jobs that have a note of the bridge.

    Parameters
    ----------
    state : Path
        State folder, the same as the bridge's.
    outbox : OutcomeQueue, optional
        Queue of outcomes; None if they are not reported.
    cluster : str
        ClusterName of slurm.conf.
    """

    def __init__(
        self,
        slurm: JobQueue,
        state: Path,
        outbox: OutcomeQueue | None,
        *,
        cluster: str,
        lead_minutes: int,
    ) -> None:
        self._slurm, self._state, self._outbox = slurm, state, outbox
        self._cluster, self._lead_minutes = cluster, lead_minutes
        self._features, self._ended = FeatureStore(state), EndedJobs(state)
        self._known: dict[str, None] = {}  # keys of outcomes that were stored
        self._pruned_s = time.monotonic()

    def run(self, stopping: Event, poll_s: float) -> None:
        """Do a pass every ``poll_s`` seconds until the event is set."""
        while not stopping.is_set():
            try:
                self.pass_once()
            except (PresageError, OSError) as error:  # slurmctld restarts, or the disk is full
                log(logging.WARNING, "a pass failed", error=str(error)[:300])
            stopping.wait(poll_s)

    def pass_once(self) -> None:
        """Extend limits, then report outcomes.

        Raises
        ------
        ServiceError
            slurmctld does not answer.
        """
        jobs = self._slurm.jobs()
        apply(self._slurm, extensions(jobs, self._lead_minutes))
        touch_heartbeat(self._state)
        if self._outbox is None:
            return
        self._store(self._outbox, jobs)
        for job in self._ended.take(jobs):
            self._store(self._outbox, [job])
        self._send(self._outbox)
        if time.monotonic() - self._pruned_s > _PRUNE_S:
            self._pruned_s = time.monotonic()
            self._features.prune()
            self._ended.prune()

    def _store(self, outbox: OutcomeQueue, jobs: Iterable[SlurmJob]) -> None:
        for job in jobs:
            key = outcome_key(job, self._cluster)
            if job.state not in ENDED or not job.note.features or key in self._known:
                continue
            self._known[key] = None
            features = self._features.get(job.note.features)
            outcome = make_outcome(job, features, self._cluster) if features else None
            if outcome is not None:
                outbox.put(outcome, hashlib.sha256(key.encode()).hexdigest())
        while len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _send(self, outbox: OutcomeQueue) -> None:
        try:
            while outbox.send():
                pass
        except PresageError as error:
            log(logging.WARNING, "outcomes are kept", error=str(error)[:300])


def apply(slurm: JobQueue, changes: Iterable[Change]) -> int:
    """Set limits of jobs; return how many were set. A job that has ended meanwhile is skipped."""
    count = 0
    for job, minutes, note in changes:
        try:
            slurm.set_limit(job, minutes, note)
        except ServiceError as error:
            log(logging.WARNING, "a limit was not set", job=job.job_id, error=str(error)[:300])
            continue
        count += 1
        log(logging.INFO, "limit set", job=job.job_id, before=job.limit_minutes, minutes=minutes)
    return count


def restore(slurm: JobQueue) -> int:
    """Give all pending and running jobs their user's own limit; return how many were changed.

    Raises
    ------
    ServiceError
        slurmctld does not answer.
    """
    return apply(slurm, restorations(slurm.jobs()))


def touch_heartbeat(state: Path) -> None:
    """Record that the watcher has just completed a pass."""
    path = state / HEARTBEAT
    path.touch(mode=0o600)
    os.utime(path)


def heartbeat_age_s(state: Path) -> float:
    """Return the time since the watcher's last pass; infinite if there was none."""
    try:
        return max(0.0, time.time() - (state / HEARTBEAT).stat().st_mtime)
    except OSError:
        return float("inf")
