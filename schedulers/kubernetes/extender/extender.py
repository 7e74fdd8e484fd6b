"""What Presage says to kube-scheduler of a pod and its candidates: by forecast and interference.

A pod with devices passes where what it is foretold to take is left of enough devices, nobody
becomes slower than is allowed, and no gang keeps them. Where nothing is foretold because whoever
foretells is down, all nodes pass, all as good, and that is said: a cluster is never held up by it.
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
from presage.schedulers.core.reported_progress import Progress
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
from presage.schedulers.kubernetes.fleet import Fleet, Reading, fleet_of
from presage.schedulers.kubernetes.gate.observed import Observed, observe
from presage.schedulers.kubernetes.gate.occupants import occupant_id
from presage.schedulers.kubernetes.gate.pod_gang import features_of, gangs_of, gpus_of, planned
from presage.schedulers.kubernetes.kubernetes_names import RESERVED
from presage.schedulers.kubernetes.pods import Name, annotation, group_of, name_of
from presage.schedulers.kubernetes.snapshot import Json, Snapshot
from presage.schedulers.policies.gang.candidates import candidates_of, needs_of
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.packing.compatibility import Limits
from presage.serving.server.log import log


class Cluster(Protocol):
    """What is known of a cluster, and how a pod is bound there."""

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        ...

    def note(self, pod: BindArgs, devices: str) -> str:
        """Note a pod's devices, which is seen at once; why that failed, else empty."""
        ...

    def bind(self, pod: BindArgs) -> str:
        """Bind a pod; why that failed, else empty."""
        ...

    def lag_s(self) -> Mapping[str, float]:
        """For how long nothing was heard of each kind."""
        ...


class Place(NamedTuple):
    """The best devices of a node for a pod, and how fast all there would be, 1 for as if alone."""

    devices: NDArray[np.int64]
    merit: float


class _View(NamedTuple):
    """What a snapshot says."""

    snapshot: Snapshot
    keeping: Mapping[Name, Json] = {}  # PodGroups that keep devices
    fleet: Fleet | None = None
    observed: Observed | None = None
    forecasts: Forecasts | None = None


_NOTHING = Snapshot(-1, {}, {}, {})


class Extender:
    """The verbs of :class:`presage.schedulers.kubernetes.extender.extender_server.ExtenderVerbs`.

    Parameters
    ----------
    policy : Policy
        Whose limits hold; the same as the gate's.
    forecaster : callable
        Makes one that remembers nothing yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        forecaster: Callable[[], Forecaster],
        reading: Reading | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._policy, self._clock = cluster, policy, clock
        self._reading = reading or Reading()
        self._forecasts = PredictionCache(forecaster)
        self._view = _View(_NOTHING)
        self._deciding = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._failure, self._was_told = "", False

    def filter(self, args: FilterArgs) -> FilterResult:
        """Candidates where a pod fits, and those whose neighbours would suffer too much named."""
        with self._deciding:
            self._asked["filter"] += 1
            at = _planned_on(args)
            if at:
                return _passed(args, {at}, f"it was planned on {at}")
            places = self._places(args.pod)
            if places is None:
                return FilterResult(list(args.nodes))
            most = self._policy.needs.most_slowdown
            why = (
                "too few of its devices have capacity for it that no gang keeps, or somebody there "
                f"would become more than {most:g} times as slow"
            )
            return _passed(args, places.keys(), why)

    def prioritize(self, args: FilterArgs) -> list[HostPriority]:
        """10 where all would be as fast as alone on the best kind, 0 where just allowed."""
        with self._deciding:
            self._asked["prioritize"] += 1
            places = None if _planned_on(args) else self._places(args.pod)
            if places is None:
                return [HostPriority(node, 0) for node in args.nodes]
            return [
                HostPriority(node, self._score(places[node].merit) if node in places else 0)
                for node in args.nodes
            ]

    def bind(self, args: BindArgs) -> str:
        """Bind a pod to the best devices of the node that was chosen."""
        with self._deciding:
            self._asked["bind"] += 1
            pod = self._cluster.snapshot().pods.get((args.pod_namespace, args.pod_name))
            if pod is not None and args.node not in dict(planned(pod)):
                places, observed = self._places(pod), self._view.observed
                if places is not None and observed is not None:
                    if args.node not in places:  # another pod was quicker
                        return f"{args.node} has no devices left for it; it is tried again"
                    devices = observed.fleet.names(places[args.node].devices.tolist())
                    failed = self._cluster.note(args, devices)
                    if failed:
                        return failed
        return self._cluster.bind(args)

    def preempt(self, args: PreemptArgs) -> Mapping[str, Victims]:
        """Nodes where it would help; if there are any, those where no gang falls apart."""
        with self._deciding:
            self._asked["preempt"] += 1
            snapshot = self._cluster.snapshot()
            by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods.values()}
            victims_of = {
                node: [by_uid[uid] for uid in victims.pods if uid in by_uid]
                for node, victims in args.victims.items()
            }
            helps = {
                node: victims
                for node, victims in args.victims.items()
                if len(victims_of[node]) < len(victims.pods)  # of some of them nothing is known
                or self._fits_without(args.pod, node, victims_of[node])
            }
            gentle = {
                node: victims
                for node, victims in helps.items()
                if not _breaks_a_gang(victims_of[node], snapshot)
            }
            return gentle or helps

    def status(self) -> Json:
        """What was asked how often, and whether anything is foretold."""
        return {
            "forecasts": self._failure or ("ok" if self._was_told else "not asked for yet"),
            "asked": dict(self._asked),
            "lag_s": {
                kind: round(lag_s, 3) if math.isfinite(lag_s) else None
                for kind, lag_s in self._cluster.lag_s().items()
            },
        }

    def _fits_without(self, pod: Json, node: str, victims: Sequence[Json]) -> bool:
        places = self._places(pod, victims)
        return places is None or node in places

    def _places(self, pod: Json, gone: Sequence[Json] = ()) -> Mapping[str, Place] | None:
        """Where a pod fits, by node, as if some others were gone; None where all is as good.

        That is so of a pod that asks for no devices, and while nothing can be foretold.
        """
        gpus = gpus_of(pod, self._reading.resource)
        observed, forecasts = self._observed()
        if not gpus or observed is None or forecasts is None:
            return None
        group, groups = group_of(pod), self._cluster.snapshot().pod_groups
        of_group = groups.get(group) if group else None
        job = Job(
            "/".join(name_of(pod)), 0.0, gpus=gpus, gpus_per_task=gpus,
            features=features_of(pod, of_group),
        )  # fmt: skip
        self._forecasts.expect(forecasts, [job])
        cluster, limits = observed.fleet.cluster, Limits.from_needs(self._policy.needs)
        now_s = self._clock()
        tenants = Tenants(State(observed.ledger, now_s, Progress()))
        leaving = {occupant_id(one, groups, now_s) for one in (pod, *gone)}
        for held in leaving & observed.ledger.running.keys():
            tenants.remove(held)
        needs = needs_of(job, cluster, forecasts, limits, exclusive=False)
        found = candidates_of(job, needs, cluster, tenants, forecasts, limits)
        self._tell(self._forecasts.failure)
        if self._failure:
            return None
        fastest_s = forecasts.runtime_s(job)
        places: dict[str, Place] = {}
        for devices, degradation in zip(found.devices, found.degradation.tolist(), strict=True):
            node = cluster.nodes[cluster.node_of[devices[0]]]
            runtime_s = forecasts.prediction(job, node.kind).runtime_s
            pace = fastest_s / runtime_s if 0 < runtime_s < math.inf else 1.0
            merit = pace * (1.0 - degradation)
            if node.name not in places or merit > places[node.name].merit:
                places[node.name] = Place(devices, merit)
        return places

    def _observed(self) -> tuple[Observed | None, Forecasts | None]:
        """Of the newest snapshot, and what is foretold; neither of a cluster without devices."""
        snapshot, now_s, view = self._cluster.snapshot(), self._clock(), self._view
        fleet = view.fleet
        if snapshot.nodes is not view.snapshot.nodes:
            fleet = fleet_of(snapshot.nodes.values(), self._reading)
        if fleet is None:
            self._view = _View(snapshot)
            return None, None
        forecasts = self._forecasts.get(fleet.cluster, now_s)
        keeping = {
            name: group
            for name, group in snapshot.pod_groups.items()
            if annotation(group, RESERVED)
        }
        observed = view.observed
        if (
            observed is None
            or fleet is not view.fleet
            or forecasts is not view.forecasts
            or keeping != view.keeping
        ):
            gangs = gangs_of(
                [pod for pod in snapshot.pods.values() if group_of(pod) in keeping], keeping
            )
            observed = observe(
                fleet, snapshot, gangs, self._forecasts, forecasts, self._policy, now_s
            )
        elif (
            snapshot.pods is not view.snapshot.pods
            or snapshot.pod_groups is not view.snapshot.pod_groups
        ):
            observed.occupants.follow(snapshot.pods.values(), snapshot.pod_groups, now_s)
        observed.ledger.expire(now_s)  # a gate that is down gives nothing back
        self._view = _View(snapshot, keeping, fleet, observed, forecasts)
        return observed, forecasts

    def _score(self, merit: float) -> int:
        if merit <= 0:
            return 0
        lost = -math.log(merit) / math.log(max(self._policy.needs.most_slowdown, 1.01))
        return min(MAX_SCORE, max(0, round(MAX_SCORE * (1.0 - lost))))

    def _tell(self, failure: str) -> None:
        self._was_told = self._was_told or not failure
        if failure != self._failure:
            self._failure = failure
            if failure:
                log(logging.WARNING, "nothing is foretold: all nodes pass", error=failure)
            else:
                log(logging.INFO, "forecasts are back")


def _planned_on(args: FilterArgs) -> str:
    """The node of a pod's plan; "" of a pod of none, or if that node is no candidate.

    That is so where it was planned in vain: bound pods are noted before they are bound.
    """
    at = planned(args.pod)
    return at[0][0] if at and at[0][0] in args.nodes else ""


def _passed(args: FilterArgs, fit: Collection[str], why: str) -> FilterResult:
    left = [node for node in args.nodes if node in fit]
    return FilterResult(left, {node: why for node in args.nodes if node not in fit})


def _breaks_a_gang(victims: Sequence[Json], snapshot: Snapshot) -> bool:
    """Whether a gang that is whole would have too few members left, and some."""
    lost = Counter(group for pod in victims if (group := group_of(pod)) is not None)
    of_lost = [pod for pod in snapshot.pods.values() if group_of(pod) in lost] if lost else []
    groups = {name: snapshot.pod_groups[name] for name in lost if name in snapshot.pod_groups}
    return any(
        0 < gang.bound - lost[gang.name] < gang.min_member
        for gang in gangs_of(of_lost, groups).values()
    )
