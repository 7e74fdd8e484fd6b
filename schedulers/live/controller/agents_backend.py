"""Backend of a live cluster with node agents: its decisions are records for the journal."""

from __future__ import annotations

import math
from typing import Any

from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reject,
    Reserve,
    Resize,
    Resume,
    Start,
    Wake,
)
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.backend import Backend, ClusterView, Decision
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.live.controller.elastic.growth import may_grow_s
from presage.schedulers.live.controller.elastic.members import resized_members
from presage.schedulers.live.controller.explanations.reasons import Before, reasons_of
from presage.schedulers.live.controller.journal.records import (
    Ended,
    Placed,
    Record,
    Resized,
    Stopping,
)
from presage.schedulers.live.controller.replayed_state import AT_NODE, LiveJob, ReplayedState, Stage
from presage.schedulers.live.controller.scheduling_view import SchedulingView
from presage.schedulers.live.protocol.wire import to_json


class AgentsBackend(Backend):
    """Backend of one decision of the controller.

    Parameters
    ----------
    view : SchedulingView
        Nodes that are up, and the jobs on them; a decision changes its ledger.

    Attributes
    ----------
    records : list of Record
        What was decided, to be written to the journal and applied then.
    wake_s : float
        Time of the next decision if nothing happens before; infinite without one.
    is_deferred : bool
        Whether a change was rejected that will be possible later, and perhaps others that need it.
    """

    def __init__(self, state: ReplayedState, view: SchedulingView, now_unix_s: float) -> None:
        self._state, self._view, self._now_unix_s = state, view, now_unix_s
        self._capacity = view.ledger.capacity
        self.records: list[Record] = []
        self.wake_s = math.inf
        self.is_deferred = False
        self._now_s = 0.0

    def observe(self, now_s: float) -> ClusterView:
        """Return the view, and keep its free capacity for the reasons of starts."""
        view, self._now_s = self._view, now_s
        self._capacity = view.ledger.capacity.copy()
        return ClusterView(view.ledger, view.state(now_s), view.forecasts)

    def why_not(self, action: Action) -> str:
        """Reject pauses, migrations, reservations, and starts of other jobs over several nodes.

        ``Resize`` of a job that is not elastic is accepted: a start may count on the share that
        another job's agent will reduce. The agents resize and pause the jobs of their nodes; the
        ledger follows their reports.
        """
        if isinstance(action, Migrate | Pause | Reserve | Resume):
            return f"a live cluster cannot carry out {type(action).__name__}"
        if not isinstance(action, Start | Resize) or not isinstance(action.allocations, tuple):
            return ""
        job = self._state.jobs.get(action.job_id) if isinstance(action.job_id, str) else None
        if isinstance(action, Resize):
            return self._why_not_resized(action, job) if job is not None else ""
        if job is not None and job.is_elastic:
            return ""
        devices = [one.device for one in action.allocations if isinstance(one, Allocation)]
        count = self._view.cluster.devices
        known = [one for one in devices if isinstance(one, int) and 0 <= one < count]
        if len({self._view.node_of(device) for device in known}) <= 1:
            return ""
        return "a start over several nodes was refused: a job of a live cluster runs on one"

    def _why_not_resized(self, action: Resize, job: LiveJob) -> str:
        """Return why an elastic job gets no other devices yet, after a failure of a worker."""
        view, own = self._view, {(member.node, member.device) for member in job.members}
        wait_s = may_grow_s(job) - self._now_s
        if not job.members or wait_s <= 0:
            return ""
        devices = [one.device for one in action.allocations if isinstance(one, Allocation)]
        count = view.cluster.devices
        known = [one for one in devices if isinstance(one, int) and 0 <= one < count]
        if all((view.node_of(one), view.number_in_node(one)) in own for one in known):
            return ""
        self.is_deferred = True
        return f"a worker of job {job.job_id!r} failed; it gets other devices in {wait_s:.0f} s"

    def apply(self, decision: Decision, now_s: float) -> None:
        """Write records. A job that is preempted starts again once its node has released it."""
        reasons = self._reasons(decision)
        leaving = {action.job_id for action in decision.actions if isinstance(action, Preempt)}
        resized = {one.job_id: one for one in decision.actions if isinstance(one, Resize)}
        for action in decision.actions:
            match action:
                case Start() if action.job_id not in leaving:
                    why = self._view.policy.explanation(action.job_id) or reasons[action.job_id]
                    self.records.append(self._placed(action, why, now_s))
                case Resize() if self._state.jobs[action.job_id].members:
                    if action is not resized[action.job_id]:
                        continue  # a later one of the same decision is complete
                    self._resize(action, reasons.get(action.job_id, ""), now_s)
                case Preempt() if self._state.jobs[action.job_id].stage in AT_NODE:
                    job = self._state.jobs[action.job_id]
                    why = "a job with priority over it needs its devices"
                    self.records.append(Stopping(job.job_id, job.attempt, why, False, now_s))
                case Reject():
                    job = self._state.jobs[action.job_id]
                    result = (Stage.REJECTED, action.why, 0.0, now_s, self._now_unix_s)
                    self.records.append(Ended(job.job_id, job.attempt, *result))
                case Wake():
                    self.wake_s = min(self.wake_s, action.at_s)

    def _reasons(self, decision: Decision) -> dict[str, str]:
        statuses: dict[str, JobStatus] = {}
        for change in decision.changes:
            statuses.setdefault(change.job.job_id, change.before)
        view = self._view
        before = Before(self._capacity, statuses)
        return reasons_of(
            decision.actions, before, view.ledger, view.policy, view.forecasts, view.node_number
        )

    def _placed(self, start: Start, why: str, now_s: float) -> Placed:
        view, live = self._view, self._state.jobs[start.job_id]
        job = live.submitted.job
        node = view.node_of(start.allocations[0].device)
        predictions = [to_json(one) for one in view.predictions(job)]
        allocations = [view.node_allocation(allocation) for allocation in start.allocations]
        members: list[list[Any]] = []
        if live.is_elastic:
            nodes = [view.node_of(one.device) for one in start.allocations]
            members = [
                [number, name, *allocation]
                for number, (name, allocation) in enumerate(zip(nodes, allocations, strict=True), 1)
            ]
            node, allocations = "", []
        kinds = view.suited_job(live).kinds  # without those that are too small for it
        narrowed = list(kinds) if kinds != job.kinds else []
        return Placed(
            job.job_id,
            live.attempt + 1,
            node,
            allocations,
            predictions,
            now_s,
            narrowed,
            why,
            members,
        )

    def _resize(self, action: Resize, why: str, now_s: float) -> None:
        """Change the workers of an elastic job, unless it has them already."""
        view, job = self._view, self._state.jobs[action.job_id]
        places = [
            (view.node_of(one.device), view.node_allocation(one)) for one in action.allocations
        ]
        members = resized_members(job, places)
        if members != sorted(job.members):
            rows = [list(member) for member in members]
            self.records.append(Resized(job.job_id, job.attempt, rows, why, now_s))
