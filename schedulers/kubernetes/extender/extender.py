"""Extender: filters and ranks nodes for kube-scheduler by forecasts and interference.

A node passes for a pod if enough of its devices have the predicted free capacity, no co-located
job exceeds the slowdown limit, and no gang has reserved the devices. While the forecaster is
unavailable, a warning is logged and all nodes pass with the same score: scheduling goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.extender.extender_types import (
    MAX_SCORE,
    BindArgs,
    FilterArgs,
    FilterResult,
    HostPriority,
    PreemptArgs,
    Victims,
)
from presage.schedulers.kubernetes.fleet import Fleet, FleetOptions, make_fleet
from presage.schedulers.kubernetes.gate.observed import Observed, observe
from presage.schedulers.kubernetes.gate.pod_allocations import pod_job_id
from presage.schedulers.kubernetes.gate.pod_gang import (
    group_pods,
    planned_devices,
    pod_features,
    requested_gpus,
)
from presage.schedulers.kubernetes.kubernetes_names import RESERVATION
from presage.schedulers.kubernetes.pods import (
    NamespacedName,
    annotation,
    namespaced_name,
    pod_group_name,
)
from presage.schedulers.kubernetes.snapshot import Json, Snapshot
from presage.schedulers.policies.gang.candidates import candidates_of, needs_of
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.packing.compatibility import Limits
from presage.serving.server.log import log


class ClusterAccess(Protocol):
    """Access to a cluster: its snapshot, and bindings of pods."""

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        ...

    def annotate_devices(self, pod: BindArgs, devices: str) -> str:
        """Annotate a pod with its devices, visible in the next snapshot; return any error."""
        ...

    def bind(self, pod: BindArgs) -> str:
        """Bind a pod; return the error, or "" if there is none."""
        ...

    def lag_s(self) -> Mapping[str, float]:
        """Return the seconds since the last response of the API server, by kind."""
        ...


class NodePlacement(NamedTuple):
    """Best devices of a node for a pod, and the relative speed of all jobs there (1: solo)."""

    devices: NDArray[np.int64]
    relative_speed: float


class _View(NamedTuple):
    """State derived from a snapshot."""

    snapshot: Snapshot
    reserving: Mapping[NamespacedName, Json] = {}  # PodGroups with a reservation
    fleet: Fleet | None = None
    observed: Observed | None = None
    forecasts: Forecasts | None = None


_EMPTY = Snapshot(-1, {}, {}, {})


class Extender:
    """Implementation of the extender's verbs (:class:`.extender_server.ExtenderVerbs`).

    Parameters
    ----------
    policy : Policy
        Policy that gives the sharing limits; the same as the gate's.
    forecaster : callable
        Makes a forecaster with an empty cache.
    """

    def __init__(
        self,
        cluster: ClusterAccess,
        policy: Policy,
        forecaster: Callable[[], Forecaster],
        fleet_options: FleetOptions | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._policy, self._clock = cluster, policy, clock
        self._fleet_options = fleet_options or FleetOptions()
        self._forecasts = PredictionCache(forecaster)
        self._view = _View(_EMPTY)
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()  # by verb
        self._failure, self._has_predicted = "", False

    def filter(self, args: FilterArgs) -> FilterResult:
        """Return the candidates where a pod fits, and why each other candidate fails."""
        with self._lock:
            self._requests["filter"] += 1
            node = _planned_node(args)
            if node:
                return _filter_result(args, {node}, f"the pod is planned on {node}")
            placements = self._placements(args.pod)
            if placements is None:
                return FilterResult(list(args.nodes))
            max_slowdown = self._policy.needs.most_slowdown
            reason = (
                "too few devices with free, unreserved capacity, or a co-located job would "
                f"become more than {max_slowdown:g} times as slow"
            )
            return _filter_result(args, placements.keys(), reason)

    def prioritize(self, args: FilterArgs) -> list[HostPriority]:
        """Score nodes: 10 for solo speed on the fastest kind, 0 for the maximum slowdown."""
        with self._lock:
            self._requests["prioritize"] += 1
            placements = None if _planned_node(args) else self._placements(args.pod)
            if placements is None:
                return [HostPriority(node, 0) for node in args.nodes]
            return [
                HostPriority(
                    node, self._score(placements[node].relative_speed) if node in placements else 0
                )
                for node in args.nodes
            ]

    def bind(self, args: BindArgs) -> str:
        """Bind a pod to the best devices of its node; return the error, or ""."""
        with self._lock:
            self._requests["bind"] += 1
            pod = self._cluster.snapshot().pods.get((args.pod_namespace, args.pod_name))
            if pod is not None and args.node not in dict(planned_devices(pod)):
                placements, observed = self._placements(pod), self._view.observed
                if placements is not None and observed is not None:
                    if args.node not in placements:  # another pod took the devices
                        return f"{args.node} has no free devices for the pod any more; retrying"
                    devices = placements[args.node].devices.tolist()
                    error = self._cluster.annotate_devices(
                        args, observed.fleet.format_devices(devices)
                    )
                    if error:
                        return error
        return self._cluster.bind(args)

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        """Return nodes where preemption helps, preferably those where no gang loses its quorum."""
        with self._lock:
            self._requests["preempt"] += 1
            snapshot = self._cluster.snapshot()
            by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods.values()}
            pods_by_node = {
                node: [by_uid[uid] for uid in victims.pods if uid in by_uid]
                for node, victims in args.victims.items()
            }
            sufficient = {
                node: victims
                for node, victims in args.victims.items()
                if len(pods_by_node[node]) < len(victims.pods)  # some pods are not in the cache
                or self._fits_without(args.pod, node, pods_by_node[node])
            }
            preserving_gangs = {
                node: victims
                for node, victims in sufficient.items()
                if not _breaks_gang(pods_by_node[node], snapshot)
            }
            return preserving_gangs or sufficient

    def status(self) -> Json:
        """Return request counts by verb, and whether forecasts are available."""
        return {
            "forecasts": self._failure or ("ok" if self._has_predicted else "not requested yet"),
            "requests": dict(self._requests),
            "lag_s": {
                kind: round(lag_s, 3) if math.isfinite(lag_s) else None
                for kind, lag_s in self._cluster.lag_s().items()
            },
        }

    def _fits_without(self, pod: Json, node: str, victims: Sequence[Json]) -> bool:
        placements = self._placements(pod, victims)
        return placements is None or node in placements

    def _placements(
        self, pod: Json, victims: Sequence[Json] = ()
    ) -> Mapping[str, NodePlacement] | None:
        """Return the best placement of a pod on each node where it fits without some victims.

        None if all nodes are equally good: the pod requests no devices, or forecasts are missing.
        """
        gpus = requested_gpus(pod, self._fleet_options.resource)
        observed, forecasts = self._observed()
        if not gpus or observed is None or forecasts is None:
            return None
        name, groups = pod_group_name(pod), self._cluster.snapshot().pod_groups
        group = groups.get(name) if name else None
        job = Job(
            "/".join(namespaced_name(pod)), 0.0, gpus=gpus, gpus_per_task=gpus,
            features=pod_features(pod, group),
        )  # fmt: skip
        self._forecasts.expect(forecasts, [job])
        cluster, limits = observed.fleet.cluster, Limits.from_needs(self._policy.needs)
        now_s = self._clock()
        tenants = Tenants(State(observed.ledger, now_s, Progress()))
        leaving = {pod_job_id(one, groups, now_s) for one in (pod, *victims)}
        for job_id in leaving & observed.ledger.running.keys():
            tenants.remove(job_id)
        needs = needs_of(job, cluster, forecasts, limits, exclusive=False)
        candidates = candidates_of(job, needs, cluster, tenants, forecasts, limits)
        self._record_failure(self._forecasts.failure)
        if self._failure:
            return None
        fastest_s = forecasts.runtime_s(job)
        placements: dict[str, NodePlacement] = {}
        degradations = candidates.degradation.tolist()
        for devices, degradation in zip(candidates.devices, degradations, strict=True):
            node = cluster.nodes[cluster.node_of[devices[0]]]
            runtime_s = forecasts.prediction(job, node.kind).runtime_s
            kind_speed = fastest_s / runtime_s if 0 < runtime_s < math.inf else 1.0
            relative_speed = kind_speed * (1.0 - degradation)
            best = placements.get(node.name)
            if best is None or relative_speed > best.relative_speed:
                placements[node.name] = NodePlacement(devices, relative_speed)
        return placements

    def _observed(self) -> tuple[Observed | None, Forecasts | None]:
        """Return the current state and its forecasts; None for a cluster without devices."""
        snapshot, now_s, view = self._cluster.snapshot(), self._clock(), self._view
        fleet = view.fleet
        if snapshot.nodes is not view.snapshot.nodes:
            fleet = make_fleet(snapshot.nodes.values(), self._fleet_options)
        if fleet is None:
            self._view = _View(snapshot)
            return None, None
        forecasts = self._forecasts.get(fleet.cluster, now_s)
        reserving = {
            name: group
            for name, group in snapshot.pod_groups.items()
            if annotation(group, RESERVATION)
        }
        observed = view.observed
        if (
            observed is None
            or fleet is not view.fleet
            or forecasts is not view.forecasts
            or reserving != view.reserving
        ):
            gangs = group_pods(
                [pod for pod in snapshot.pods.values() if pod_group_name(pod) in reserving],
                reserving,
            )
            observed = observe(
                fleet, snapshot, gangs, self._forecasts, forecasts, self._policy, now_s
            )
        elif (
            snapshot.pods is not view.snapshot.pods
            or snapshot.pod_groups is not view.snapshot.pod_groups
        ):
            observed.pod_allocations.sync(snapshot.pods.values(), snapshot.pod_groups, now_s)
        observed.ledger.expire(now_s)  # a gate that is down does not release reservations
        self._view = _View(snapshot, reserving, fleet, observed, forecasts)
        return observed, forecasts

    def _score(self, relative_speed: float) -> int:
        if relative_speed <= 0:
            return 0
        max_slowdown = max(self._policy.needs.most_slowdown, 1.01)
        loss = -math.log(relative_speed) / math.log(max_slowdown)
        return min(MAX_SCORE, max(0, round(MAX_SCORE * (1.0 - loss))))

    def _record_failure(self, failure: str) -> None:
        self._has_predicted = self._has_predicted or not failure
        if failure != self._failure:
            self._failure = failure
            if failure:
                log(logging.WARNING, "no forecasts available: all nodes pass", error=failure)
            else:
                log(logging.INFO, "forecasts are available again")


def _planned_node(args: FilterArgs) -> str:
    """Return the planned node of a pod; "" if it has none, or if the node is no candidate.

    A planned node is no candidate if binding failed: devices are annotated before binding.
    """
    devices = planned_devices(args.pod)
    return devices[0][0] if devices and devices[0][0] in args.nodes else ""


def _filter_result(args: FilterArgs, fitting: Collection[str], reason: str) -> FilterResult:
    passed = [node for node in args.nodes if node in fitting]
    return FilterResult(passed, {node: reason for node in args.nodes if node not in fitting})


def _breaks_gang(victims: Sequence[Json], snapshot: Snapshot) -> bool:
    """Return whether a bound gang would lose its quorum, but not all of its members."""
    lost = Counter(name for pod in victims if (name := pod_group_name(pod)) is not None)
    members = [pod for pod in snapshot.pods.values() if pod_group_name(pod) in lost] if lost else []
    groups = {name: snapshot.pod_groups[name] for name in lost if name in snapshot.pod_groups}
    return any(
        0 < gang.bound_count - lost[gang.name] < gang.min_member
        for gang in group_pods(members, groups).values()
    )
