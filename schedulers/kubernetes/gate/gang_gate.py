"""The gate: it releases the pods of a gang to kube-scheduler once the whole gang has a plan.

It binds no pods: it restricts each pod's node affinity and removes its scheduling gate, then
kube-scheduler checks and binds, so that two caches cannot disagree (requirement A6). It keeps no
state: decisions are annotations, each in one write that fails if the object has changed meanwhile.
After a crash the next gate continues from them.

States of a gang: *waiting* (its pods are gated), *reserving* (it holds too few devices, A5),
*planned* (its PodGroup has the plan, and its pods are released one by one), *running* (a quorum is
bound). A gang that does not reach quorum in time, or loses it for too long, is *rolled back*: its
pods are deleted, and their controllers recreate them with a gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from random import Random

from presage.schedulers.core.backend import reconcile
from presage.schedulers.core.failures.hazards import HazardForecaster
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.fleet import Fleet, FleetOptions, make_fleet
from presage.schedulers.kubernetes.gate.gang_recovery import complete
from presage.schedulers.kubernetes.gate.gang_writes import Step, event_object
from presage.schedulers.kubernetes.gate.gate_backend import GateBackend, log_rejections
from presage.schedulers.kubernetes.gate.node_outages import NodeOutages
from presage.schedulers.kubernetes.gate.pod_gang import PodGang, group_pods
from presage.schedulers.kubernetes.gate.writes import (
    EmitEvent,
    ObjectVersion,
    Write,
    involved_object,
    object_version,
)
from presage.schedulers.kubernetes.snapshot import Json, Snapshot


class Gate:
    """Next writes for the state of a cluster: a pure function, but for what it remembers.

    It caches predictions, and keeps the outages of devices for a policy that reads hazards.

    Parameters
    ----------
    forecaster : callable
        Returns a new forecaster, without cached predictions.
    hazards : HazardForecaster, optional
        Source of hazards for a policy that reads them; by default the pretrained model.
    """

    def __init__(
        self,
        policy: Policy,
        forecaster: Callable[[], Forecaster],
        fleet_options: FleetOptions | None = None,
        *,
        hazards: HazardForecaster | None = None,
        seed: int = 0,
    ) -> None:
        self._policy, self._seed = policy, seed
        self._fleet_options = fleet_options or FleetOptions()
        self._outages = NodeOutages() if policy.needs.hazards else None
        self.forecasts = PredictionCache(
            forecaster,
            hazards=(hazards or read_outage_hazards()) if policy.needs.hazards else None,
        )
        self._nodes: Mapping[str, Json] | None = None
        self._followed_nodes: Mapping[str, Json] | None = None  # in the history of outages
        self._fleet: Fleet | None = None  # of these nodes

    def step(
        self, snapshot: Snapshot, now_s: float, refused: Collection[ObjectVersion] = frozenset()
    ) -> Step:
        """Return the next writes: earlier decisions are completed before the policy decides again.

        Parameters
        ----------
        refused : collection of ObjectVersion
            Objects of which the API server has just refused a write. They stay as they are: no
            other gang waits for them or gets the devices that are planned for them.
        """
        gangs = group_pods(snapshot.pods.values(), snapshot.pod_groups)
        writes: list[Write] = []
        next_pass_s = math.inf
        blocked = {
            job_id
            for job_id, gang in gangs.items()
            if object_version(event_object(gang)) in refused
        }
        for job_id, gang in gangs.items():
            step = complete(gang, snapshot.nodes, now_s, self._policy)
            allowed = [
                write
                for write in step.writes
                if object_version(involved_object(write)) not in refused
            ]
            if len(allowed) < len(step.writes):
                blocked.add(job_id)
            else:
                next_pass_s = min(next_pass_s, step.next_pass_s)
            writes += allowed
        if writes:
            return Step(writes, now_s)
        decided = self._decide(snapshot, gangs, now_s, blocked)
        return Step(decided.writes, min(next_pass_s, decided.next_pass_s))

    def blocking_reasons(self, snapshot: Snapshot, now_s: float) -> Mapping[str, str]:
        """Return why gangs with gated pods cannot be planned, by job id."""
        gangs = group_pods(snapshot.pods.values(), snapshot.pod_groups)
        backend = self.backend(snapshot, gangs)
        if backend is None:
            return self._reasons_without_fleet(gangs)
        return backend.observe_gangs(now_s)[0].blocked

    def _decide(
        self,
        snapshot: Snapshot,
        gangs: Mapping[str, PodGang],
        now_s: float,
        blocked: Collection[str],
    ) -> Step:
        backend = self.backend(snapshot, gangs, blocked)
        if backend is None:
            events: list[Write] = [
                EmitEvent(event_object(gangs[job_id]), "FailedScheduling", why, is_warning=True)
                for job_id, why in self._reasons_without_fleet(gangs).items()
            ]
            return Step(events, math.inf)
        self._follow_outages(snapshot, now_s)
        rng = Random(self._seed)  # noqa: S311 - not used for secrets
        log_rejections(reconcile(backend, self._policy, rng, now_s))
        return Step(backend.writes, backend.next_pass_s)

    def backend(
        self, snapshot: Snapshot, gangs: Mapping[str, PodGang], blocked: Collection[str] = ()
    ) -> GateBackend | None:
        """Return the backend of a pass; None if no node has devices."""
        if snapshot.nodes is not self._nodes:
            self._nodes = snapshot.nodes
            self._fleet = make_fleet(snapshot.nodes.values(), self._fleet_options)
        if self._fleet is None:
            return None
        return GateBackend(
            self._fleet, snapshot, gangs, self.forecasts, self._policy, blocked, self._outages
        )

    def _follow_outages(self, snapshot: Snapshot, now_s: float) -> None:
        """Update the history of outages, for a policy that reads hazards."""
        if self._outages is None or self._fleet is None:
            return
        if snapshot.nodes is not self._followed_nodes:
            self._followed_nodes = snapshot.nodes
            self._outages.update(self._fleet, now_s)

    def _reasons_without_fleet(self, gangs: Mapping[str, PodGang]) -> Mapping[str, str]:
        resource = self._fleet_options.resource
        return {
            job_id: gang.blocking_reason(resource) or f"no node has {resource}"
            for job_id, gang in gangs.items()
            if gang.gated_pods
        }
