"""The contract of backends, which carry out the decisions of a policy, and their reconcile loop.

Read it to connect another system. The simulator, the controller of a live cluster, the agent of a
node and the Kubernetes gate are backends: each observes a cluster as a ledger and carries out
actions, and all of them decide by :func:`reconcile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar, NamedTuple

from presage.errors import ImpossibleActionError
from presage.schedulers.core.action import Action, Preempt
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.failures.outage_history import OutageHistory
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.ledger import Change, Ledger
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.queue import Key, Queue, SubmissionNumbers
from presage.schedulers.core.state import State
from presage.schedulers.core.users.fair_queue import FairQueue
from presage.schedulers.core.users.quota import NO_QUOTAS, Quotas
from presage.schedulers.core.users.quota_gate import QuotaGate
from presage.system.text.user_code import describe_exception


class ClusterView(NamedTuple):
    """Observed cluster.

    Attributes
    ----------
    ledger : Ledger
        Jobs and devices; :func:`reconcile` applies the decision to it.
    state : State
        The ledger at the time of the decision, as the policy sees it.
    forecasts : Forecasts
        Forecasts that the policy may read.
    """

    ledger: Ledger
    state: State
    forecasts: Forecasts


class Rejection(NamedTuple):
    """Action that was not carried out.

    Attributes
    ----------
    action : Action or None
        None stands for the whole decision.
    why : str
        The reason, in a sentence.
    """

    action: Action | None
    why: str


class Decision(NamedTuple):
    """Outcome of one decision of a policy.

    Attributes
    ----------
    actions : sequence of Action
        Actions that the ledger accepted, in order.
    changes : sequence of Change
        Changes of job statuses that follow from them, in order.
    rejections : sequence of Rejection
        Actions that the backend or the ledger rejected.
    """

    actions: Sequence[Action] = ()
    changes: Sequence[Change] = ()
    rejections: Sequence[Rejection] = ()


NOTHING = Decision()


class Backend(ABC):
    """System that runs jobs: the simulator, a cluster, a node.

    Attributes
    ----------
    is_atomic : bool
        Whether a decision with an impossible action is rejected as a whole, and exceptions of the
        policy are raised. By default the possible actions are carried out and exceptions are
        rejections, because a live cluster must not stop for a faulty policy.
    """

    is_atomic: ClassVar[bool] = False

    @abstractmethod
    def observe(self, now_s: float) -> ClusterView | None:
        """Return the cluster as it is; None if there is nothing to decide about.

        :meth:`presage.schedulers.core.ledger.Ledger.sync` enters each job as it was observed. The
        ledger may be new at each call, or kept and brought up to date; a ledger that is kept holds
        earlier decisions, so it has to be rebuilt if one of them was not carried out.
        """

    def why_not(self, action: Action) -> str:
        """Return why this backend can never carry out an action; "" if it can.

        The action comes straight from the policy and may be malformed.
        """
        del action
        return ""

    @abstractmethod
    def apply(self, decision: Decision, now_s: float) -> None:
        """Carry out actions that the ledger accepted.

        What cannot be carried out at once shows in the next observation, and is decided again. The
        method is called for decisions with at least one accepted action. An exception ends the
        pass, so failures of single actions should be left to the next observation.
        """


def reconcile(backend: Backend, policy: Policy, rng: Random, now_s: float) -> Decision:
    """Observe a cluster, decide, check the decision with the ledger, and carry it out.

    Returns
    -------
    Decision
        What was carried out, and what was rejected and why. A policy that raises
        ImpossibleActionError has rejected its own decision.
    """
    view = backend.observe(now_s)
    if view is None:
        return NOTHING
    try:
        actions: Any = policy.decide(view.state, view.forecasts, rng)  # a user's code
    except ImpossibleActionError as error:
        return _rejected(str(error))
    except Exception as error:
        if backend.is_atomic:
            raise
        return _rejected(f"decide raised {describe_exception(error)}")
    if type(actions) is not list and not isinstance(actions, Sequence):
        return _rejected(f"decide returned {type(actions).__name__}, not a list of actions")
    if not actions:
        return NOTHING
    decision = _checked(backend, view.ledger, actions, now_s)
    if decision.actions:
        backend.apply(decision, now_s)
    return decision


def _rejected(why: str) -> Decision:
    return Decision(rejections=[Rejection(None, why)])


def _checked(backend: Backend, ledger: Ledger, actions: Sequence[Action], now_s: float) -> Decision:
    """Apply the possible actions to the ledger: all of them at once, else one by one."""
    unsupported = []
    for action in actions:
        if why := backend.why_not(action):
            unsupported.append(Rejection(action, why))
    if unsupported:
        rejected = {id(rejection.action) for rejection in unsupported}
        actions = [action for action in actions if id(action) not in rejected]
    try:
        return Decision(actions, ledger.apply(actions, now_s), unsupported)
    except ImpossibleActionError as error:
        if backend.is_atomic:
            return Decision(rejections=[*unsupported, Rejection(None, str(error))])
    accepted, changes, rejections = list[Action](), list[Change](), unsupported
    for action in actions:
        if isinstance(action, Preempt):  # it may serve only an action that was rejected
            why = "a job is preempted only if all actions of a decision are possible"
            rejections.append(Rejection(action, why))
            continue
        try:
            changes += ledger.apply([action], now_s)
        except ImpossibleActionError as error:
            rejections.append(Rejection(action, str(error)))
        else:
            accepted.append(action)
    return Decision(accepted, changes, rejections)


def make_ledger(
    cluster: Cluster,
    policy: Policy,
    forecasts: Forecasts,
    *,
    outages: OutageHistory | None = None,
    device_ids: Sequence[str] | None = None,
    quotas: Quotas = NO_QUOTAS,
) -> Ledger:
    """Return an empty ledger whose queue is in the order of a policy.

    ``outages`` and ``device_ids`` are as of :class:`presage.schedulers.core.ledger.Ledger`.
    """
    pending, gate = make_queue(policy, forecasts), None
    if quotas.has_limits:
        functions = _gate_functions(cluster, policy, forecasts, pending.numbers)
        gate = QuotaGate(quotas, *functions)
    return Ledger(
        cluster,
        pending,
        ageing_s=policy.needs.ageing_s,
        outages=outages,
        device_ids=device_ids,
        gate=gate,
    )


def renew_queue(ledger: Ledger, policy: Policy, forecasts: Forecasts) -> None:
    """Order the jobs that are pending later by other forecasts; none may be pending now."""
    pending = make_queue(policy, forecasts)
    ledger.replace_queue(pending)
    if ledger.gate is not None:
        functions = _gate_functions(ledger.cluster, policy, forecasts, pending.numbers)
        ledger.gate.renew(*functions)


def _gate_functions(
    cluster: Cluster, policy: Policy, forecasts: Forecasts, numbers: SubmissionNumbers
) -> tuple[Callable[[], Queue], Callable[[Job, JobStatus], int]]:
    """Return functions that make a queue, and that return the demand of a job on a device."""

    def demand_milli(job: Job, status: JobStatus) -> int:
        if job.latency_sensitive and policy.needs.resizes:
            return FULL_DEVICE_MILLI  # its share grows as far as its SLO needs
        demands = [
            policy.demand(job, kind, cluster, forecasts, overflows=status.overflows).compute_milli
            for kind in cluster.kinds
            if not job.kinds or kind in job.kinds
        ]
        return max(demands, default=FULL_DEVICE_MILLI)

    def queue() -> Queue:
        return Queue(_key(policy, forecasts), numbers)

    return queue, demand_milli


def make_queue(policy: Policy, forecasts: Forecasts) -> Queue:
    """Return an empty queue in the order of a policy."""
    key = _key(policy, forecasts)
    return FairQueue(key) if policy.needs.fair_share_s else Queue(key)


def _key(policy: Policy, forecasts: Forecasts) -> Callable[[Job, JobStatus], Key]:
    # It closes only over the policy and the forecasts, because policies can reach the queue.
    return lambda job, status: policy.key(job, status, forecasts)
