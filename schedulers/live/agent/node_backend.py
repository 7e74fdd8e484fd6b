"""Backend of an agent: the ledger of its node, and the decisions that its tasks follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

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
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.backend import Backend, ClusterView, Decision
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Key, Queue
from presage.schedulers.core.reports.compute_usage import Usage
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.live.agent.node_task import Name, NodeTask, Step


class NodeBackend(Backend):
    """Tasks of a node as jobs of a ledger; a decision changes the tasks.

    Parameters
    ----------
    forecasts : callable
        Returns current forecasts for a cluster, at a time in seconds.
    tasks : mapping of (str, int) to NodeTask
        Tasks of the node; read at each decision.
    preempt : callable
        Ends a task that the policy evicts, with a checkpoint.

    Attributes
    ----------
    check_s : float
        Period in seconds at whose multiples the policy checks SLOs; 0 without such a policy.
    """

    def __init__(
        self,
        cluster: Cluster,
        forecasts: Callable[[Cluster, float], Forecasts],
        tasks: Mapping[Name, NodeTask],
        preempt: Callable[[NodeTask, str], None],
    ) -> None:
        self._cluster, self._forecasts = cluster, forecasts
        self._tasks, self._preempt = tasks, preempt
        self.usage, self.progress = Usage(), Progress()
        self.ledger = Ledger(cluster, Queue(_key))
        self._attempts: dict[str, int] = {}  # of the jobs in the ledger
        self.check_s = self._checked_s = 0.0

    # Observed tasks -------------------------------------------------------------------------

    def enter(self, task: NodeTask, now_s: float) -> str:
        """Enter a task that waits for devices; return why it can never run here, or ""."""
        job, order = task.submitted.job, task.order
        first_s = now_s - order.elapsed_s if order.elapsed_s > 0 else math.inf
        status = JobStatus(
            Phase.PENDING,
            now_s,
            starts=order.attempt - 1,
            overflows=int(order.exclusive),
            first_start_s=first_s,
        )
        return self._sync(task, job, status)

    def hold(self, task: NodeTask, phase: Phase, now_s: float, ran_s: float) -> str:
        """Let an entered task run on its devices; return why they are not free, or ""."""
        job_id = task.name[0]
        job, status = self.ledger.jobs[job_id], self.ledger.status(job_id)
        first_s = min(status.first_start_s, now_s) - ran_s
        held = status._replace(
            phase=phase,
            allocations=task.allocations,
            first_start_s=first_s,
            attained_s=ran_s * len(task.allocations),
        )
        return self._sync(task, job, held)

    def release(self, task: NodeTask) -> None:
        """Remove a task from the ledger, unless the ledger has a later attempt of its job."""
        job_id, attempt = task.name
        if self._attempts.get(job_id) == attempt:
            self.ledger.forget(job_id)
            del self._attempts[job_id]

    def forget(self, job: Job) -> None:
        """Drop progress and usage of a job of which no task is left."""
        self.progress.forget(job.job_id)
        self.usage.forget(job.job_id)

    def set_first_start(self, job_id: str, first_start_s: float) -> None:
        """Change when a job first started, in seconds, if it is in the ledger."""
        if job_id in self.ledger.jobs:
            status = self.ledger.status(job_id)._replace(first_start_s=first_start_s)
            self.ledger.sync(self.ledger.jobs[job_id], status)

    def _sync(self, task: NodeTask, job: Job, status: JobStatus) -> str:
        job_id, attempt = task.name
        why = self.ledger.sync(job, status)
        if why:
            self._attempts.pop(job_id, None)
        else:
            self._attempts[job_id] = attempt
        return why

    # Backend --------------------------------------------------------------------------------

    def observe(self, now_s: float) -> ClusterView:
        """Return the node; the time of the state is the last SLO check if one is due."""
        forecasts = self._forecasts(self._cluster, now_s)
        if self.check_s:
            # In one request: each request to a predictor that does not respond costs its timeout.
            jobs = self.ledger.jobs.values()
            forecasts.expect(job for job in jobs if not forecasts.has_requested(job))
        state = State(self.ledger, self._decision_s(now_s), self.progress, self.usage)
        return ClusterView(self.ledger, state, forecasts)

    def why_not(self, action: Action) -> str:
        """Reject what concerns other nodes or the queue: the controller decides about both."""
        if isinstance(action, Migrate | Reject | Reserve):
            return f"an agent cannot carry out {type(action).__name__}"
        return ""

    def apply(self, decision: Decision, now_s: float) -> None:
        """Change the tasks as decided."""
        for action in decision.actions:
            self._carry_out(action)

    def _decision_s(self, now_s: float) -> float:
        if not self.check_s:
            return now_s
        last = math.floor(now_s / self.check_s) * self.check_s
        if last > self._checked_s:
            self._checked_s = last
            return last
        return now_s

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Wake):  # the agent decides again within a second
            return
        task = self.current(action.job_id)
        if task is None:
            return
        match action:
            case Start():
                task.allocations, task.step = action.allocations, Step.ALLOCATED
                task.why = ""
                if not task.order.elapsed_s:  # its SLO counts from when there is a process
                    self.set_first_start(action.job_id, math.inf)
            case Resize():
                before, task.allocations = task.allocations, action.allocations
                task.has_constant_share = False
                verb = "raised" if _amount(action.allocations) > _amount(before) else "reduced"
                task.why = f"its share was {verb} to {_share(action.allocations)}"
            case Pause():
                task.has_constant_share, task.paused = False, True
                task.why = "paused: it uses more compute than predicted, and meets its SLO"
            case Resume():
                task.paused, task.why = False, ""
            case Preempt():
                why = "latency-sensitive jobs on its device leave too little compute"
                self._preempt(task, why)

    def current(self, job_id: str) -> NodeTask | None:
        """Return the task of a job that is not ending; None if there is none."""
        return next(
            (
                task
                for name, task in self._tasks.items()
                if name[0] == job_id and not task.end and task.step is not Step.ENDED
            ),
            None,
        )


def _key(job: Job, status: JobStatus) -> Key:
    return (-job.priority, job.submit_s)


def _amount(allocations: Sequence[Allocation]) -> tuple[int, int]:
    return allocations[0].compute_milli, allocations[0].memory_bytes


def _share(allocations: Sequence[Allocation]) -> str:
    return f"{allocations[0].compute_milli * 100 / FULL_DEVICE_MILLI:g} % of the device"
