"""Backend of the Kubernetes gate: its decisions are writes to the API server."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

from presage.schedulers.core.action import Action, Preempt, Reserve, Start, Wake
from presage.schedulers.core.backend import Backend, ClusterView, Decision
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.fleet import Fleet
from presage.schedulers.kubernetes.gate.annotations import Reservation
from presage.schedulers.kubernetes.gate.gang_writes import (
    annotate,
    assign_devices,
    event_object,
    plan_gang,
    roll_back,
    uid,
)
from presage.schedulers.kubernetes.gate.node_outages import NodeOutages
from presage.schedulers.kubernetes.gate.observed import Observed, observe
from presage.schedulers.kubernetes.gate.pod_gang import PodGang
from presage.schedulers.kubernetes.gate.writes import EmitEvent, Write
from presage.schedulers.kubernetes.kubernetes_names import RESERVATION
from presage.schedulers.kubernetes.snapshot import Snapshot
from presage.serving.server.log import log


class GateBackend(Backend):
    """Backend of one pass of the gate.

    Of all gangs that can start or hold devices, one is written: the next pass sees where the others
    fit.

    Parameters
    ----------
    gangs : mapping of str to PodGang
        Gangs by job id.
    blocked : collection of str
        Job ids of gangs that cannot be planned in this pass.
    outages : NodeOutages, optional
        History of the outages of devices, for policies that read hazards.

    Attributes
    ----------
    writes : list of Write
        Events about gangs that cannot be planned, then what was decided.
    next_pass_s : float
        Time of the next pass if nothing changes before; infinite if nothing is scheduled.
    """

    def __init__(
        self,
        fleet: Fleet,
        snapshot: Snapshot,
        gangs: Mapping[str, PodGang],
        predictions: PredictionCache,
        policy: Policy,
        blocked: Collection[str] = (),
        outages: NodeOutages | None = None,
    ) -> None:
        self._fleet, self._snapshot, self._gangs = fleet, snapshot, gangs
        self._predictions, self._policy, self._blocked = predictions, policy, blocked
        self._outages = outages
        self.writes: list[Write] = []
        self.next_pass_s = math.inf

    def observe(self, now_s: float) -> ClusterView | None:
        """Return the cluster; None if a gang without devices is planned first."""
        observed, view = self.observe_gangs(now_s)
        self.writes += [
            EmitEvent(event_object(self._gangs[job_id]), "FailedScheduling", why, is_warning=True)
            for job_id, why in observed.blocked.items()
        ]
        for gang in observed.without_devices:
            self.writes += plan_gang(gang, {uid(pod): "" for pod in gang.gated_pods}, now_s)
            self.next_pass_s = now_s
            return None
        return view

    def observe_gangs(self, now_s: float) -> tuple[Observed, ClusterView]:
        """Return the gangs and why some cannot be planned, and the cluster."""
        forecasts = self._predictions.get(self._fleet.cluster, now_s)
        observed = observe(
            self._fleet, self._snapshot, self._gangs, self._predictions, forecasts, self._policy,
            now_s, self._blocked, self._outages,
        )  # fmt: skip
        state = State(observed.ledger, now_s, Progress())
        return observed, ClusterView(observed.ledger, state, forecasts)

    def why_not(self, action: Action) -> str:
        """Reject actions that change running pods: only gangs without pods on devices change."""
        if isinstance(action, Preempt) and self._is_pod(action.job_id):
            return "the gate preempts gangs that hold reservations, and no running pods"
        if isinstance(action, Preempt | Reserve | Start | Wake):
            return ""
        return f"the gate cannot carry out {type(action).__name__}"

    def apply(self, decision: Decision, now_s: float) -> None:
        """Write the first start, reservation or preemption."""
        for action in decision.actions:
            if isinstance(action, Wake):
                self.next_pass_s = min(self.next_pass_s, action.at_s)
            elif isinstance(action, Preempt | Reserve | Start):
                self.writes += self._writes_for(action, now_s)
                self.next_pass_s = now_s
                return

    def _is_pod(self, job_id: object) -> bool:
        return isinstance(job_id, str) and job_id not in self._gangs

    def _writes_for(self, action: Preempt | Reserve | Start, now_s: float) -> list[Write]:
        gang = self._gangs[action.job_id]
        if isinstance(action, Preempt):
            return [roll_back(gang, now_s)]
        devices = self._fleet.format_devices(allocation.device for allocation in action.allocations)
        if isinstance(action, Reserve):
            reservation = Reservation(devices, action.until_s)
            return [annotate(gang, {RESERVATION: reservation.to_json()})]
        return plan_gang(gang, assign_devices(gang, devices, self._fleet.resource), now_s)


def log_rejections(decision: Decision) -> None:
    """Log the actions that were not carried out."""
    for rejection in decision.rejections:
        log(logging.WARNING, "an action was rejected", error=rejection.why)
