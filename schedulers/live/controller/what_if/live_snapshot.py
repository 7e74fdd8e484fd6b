"""Copy of a live cluster's state, from which simulations start.

:func:`copy_state` runs under the controller's lock: it copies dictionaries and keeps references.
:meth:`LiveCopy.snapshot` does the rest later, such as reading jobs from JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.users.decayed_use import DecayedUse
from presage.schedulers.core.users.quota import Quotas
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.replayed_state import ENDED, LiveJob, Stage
from presage.schedulers.live.controller.scheduling_view import SchedulingView
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.what_if.snapshot import (
    Past,
    PastJob,
    Returning,
    Snapshot,
    take_snapshot,
)
from presage.system.text.units import counted

MAX_PAST = 2_000  # last ended jobs that are read


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Job that will wait again at a time, unless it was cancelled."""

    live: LiveJob
    status: JobStatus
    at_s: float
    done: float
    why: str


@dataclass(frozen=True, slots=True)
class LiveCopy:
    """Copy of the controller's state.

    Attributes
    ----------
    scheduled : Snapshot
        Jobs and nodes as the policy sees them.
    tasks : sequence of mapping of str to Task
        Last reported tasks of each node.
    known, new, ended : sequence of LiveJob
        Jobs that the policy has seen, those that it has not, and the last ended ones.
    devices : mapping of str to list of [kind, memory_bytes]
        Devices of each node.
    quotas, use
        As in :class:`presage.schedulers.what_if.snapshot.Snapshot`.
    """

    scheduled: Snapshot
    tasks: Sequence[Mapping[str, pb.Task]]
    known: Sequence[LiveJob]
    new: Sequence[LiveJob]
    ended: Sequence[LiveJob]
    all_since_s: float
    leaving: Sequence[_Leaving]
    unschedulable: Mapping[str, tuple[LiveJob, str]]
    closed: Mapping[str, tuple[LiveJob, str]]
    elsewhere: Mapping[str, tuple[LiveJob, str]]
    devices: Mapping[str, list[list[Any]]]
    silent: Sequence[str]
    quotas: Quotas
    use: DecayedUse

    def snapshot(self) -> Snapshot:
        """Return the state from which simulations start."""
        found = self.scheduled
        jobs = dict(found.jobs)
        pending = dict(found.pending)
        for live in self.new:
            jobs[live.job_id] = live.submitted.job
            pending[live.job_id] = JobStatus(Phase.PENDING, found.now_s)
        apart = {**self.unschedulable, **self.closed, **self.elsewhere}
        jobs.update((job_id, live.submitted.job) for job_id, (live, _) in apart.items())
        returning = tuple(
            Returning(one.live.submitted.job, one.status, one.at_s, one.done, one.why)
            for one in self.leaving
        )
        jobs.update((one.job.job_id, one.job) for one in returning)
        lives = (*self.known, *self.new, *(one.live for one in self.leaving))
        return replace(
            found,
            jobs=jobs,
            pending=pending,
            estimated=frozenset(
                job_id
                for tasks in self.tasks
                for job_id, task in tasks.items()
                if task.done_estimated
            ),
            returning=returning,
            impossible={job_id: why for job_id, (_, why) in self.unschedulable.items()},
            elsewhere={job_id: why for job_id, (_, why) in self.elsewhere.items()},
            closed={job_id: why for job_id, (_, why) in self.closed.items()},
            limits_s={
                live.job_id: live.submitted.time_limit_s
                for live in lives
                if live.submitted.time_limit_s
            },
            is_live=True,
            quotas=self.quotas,
            use=self.use,
            past=Past([self._past_job(live) for live in self.ended], self.all_since_s),
            assumptions=self._assumptions(),
        )

    def _assumptions(self) -> tuple[str, ...]:
        nodes = (f"node {name} does not come back" for name in self.silent)
        count = counted(len(self.closed), "job")
        closed = f"{count} that wait{'s' if len(self.closed) == 1 else ''} for more than devices"
        return (*nodes, *([f"no start of {closed}"] if self.closed else []))

    def _past_job(self, live: LiveJob) -> PastJob:
        job, devices = live.submitted.job, self.devices.get(live.node, ())
        used = {devices[row[0]][0] for row in live.allocations if row[0] < len(devices)}
        # The run time of a job that shared its device, or ran in several attempts, is not that of
        # its forecast.
        is_exclusive = all(row[1] == FULL_DEVICE_MILLI for row in live.allocations)
        is_plain = live.stage is Stage.FINISHED and live.starts == 1 and not live.is_elastic
        return PastJob(
            job,
            live.since_s,
            live.ran_s or None,
            is_plain and is_exclusive and len(used) == 1,
            next(iter(used)) if len(used) == 1 else "",
        )


def copy_state(core: Core, now_s: float) -> LiveCopy | None:
    """Return a copy of the controller's state; None if the policy's view has to be rebuilt."""
    view = core.current_view
    if view is None:
        return None
    state = core.state
    silent = [
        name
        for name, node in state.nodes.items()
        if not node.lost and not view.has_node(name) and not core.is_connected(name, now_s)
    ]
    ended = list(islice(reversed(state.ended), MAX_PAST))
    is_cut = len(ended) < state.job_count - (len(state.jobs) - len(state.ended))
    oldest_s = state.jobs[ended[-1]].since_s if ended else math.inf
    scheduled = take_snapshot(view.state(now_s))
    return LiveCopy(
        scheduled,
        [core.nodes[name].tasks for name in view.nodes if view.has_node(name)],
        [state.jobs[job_id] for job_id in scheduled.jobs],
        view.new_jobs,
        [state.jobs[job_id] for job_id in ended],
        oldest_s if is_cut else 0.0,
        list({one.live.job_id: one for one in _leaving_jobs(core, view, silent, now_s)}.values()),
        {one: (state.jobs[one], why) for one, why in view.unschedulable.items()},
        dict(_closed_jobs(core)),
        dict(_jobs_elsewhere(core, view, silent)),
        {name: node.devices for name, node in state.nodes.items()},
        silent,
        state.users.quotas,
        state.users.use.copy(),
    )


def _leaving_jobs(
    core: Core, view: SchedulingView, silent: Sequence[str], now_s: float
) -> Iterator[_Leaving]:
    """Yield jobs that leave their node, have no free devices there, or are on a silent node."""
    scheduled = view.ledger.jobs
    for name, jobs in core.state.at_node.items():
        for job_id, live in jobs.items():
            if job_id in scheduled or live.cancel or live.stage in ENDED:
                continue
            task = core.nodes[name].tasks.get(live.job_id)
            done = task.saved if task is not None else live.saved
            status = JobStatus(
                Phase.PENDING, now_s, starts=live.starts, overflows=live.overflows,
                waited_s=live.waited_s,
            )  # fmt: skip
            if name in silent:
                lost_s = max(now_s, core.nodes[name].reported_s + core.loss_timeout_s(name))
                yield _Leaving(live, status, lost_s, done, f"node {name} is silent")
            elif live.stage is Stage.LEAVING:
                yield _Leaving(live, status, now_s, done, f"it leaves node {name}")
            elif live.job_id in view.unplaced:
                yield _Leaving(live, status, now_s, done, f"node {name} has no devices for it")


def _closed_jobs(core: Core) -> Iterator[tuple[str, tuple[LiveJob, str]]]:
    """Yield the waiting jobs that are not in the queue, with reasons."""
    if core.state.stages[Stage.WAITING]:
        for live in core.state.jobs.values():
            if live.stage is Stage.WAITING and (why := core.state.gates.closed_reason(live)):
                yield live.job_id, (live, why)


def _jobs_elsewhere(
    core: Core, view: SchedulingView, silent: Sequence[str]
) -> Iterator[tuple[str, tuple[LiveJob, str]]]:
    """Yield jobs that run on connected nodes which get no jobs."""
    for name, jobs in core.state.at_node.items():
        if view.has_node(name) or name in silent:
            continue
        for live in jobs.values():
            if live.stage is not Stage.LEAVING and live.job_id not in view.ledger.jobs:
                yield live.job_id, (live, f"it runs on node {name}, which gets no jobs")
