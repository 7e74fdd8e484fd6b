"""The gate: when a whole gang has its plan, its pods are released to kube-scheduler.

It binds nothing: it tightens each pod's node affinity and takes its gate away, and kube-scheduler
checks and binds, so that no two caches can disagree (requirement A6). And it remembers nothing:
what it decided stands in annotations before anything of it is done, each in one write that is
refused if something else was written meanwhile. Whoever comes after a crash goes on from there.

A gang, seen over time: *waiting* (its pods are gated), perhaps *keeping* devices that are too few
(A5), *planned* (its PodGroup has the plan, its pods are released one after the other), *whole* (a
quorum is bound). A gang that is not whole in time, or is whole no longer and not again in time, is
*taken back*: its pods are deleted and their owners create them anew, gated.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple

from presage.errors import ImpossibleActionError
from presage.schedulers.core.action import Preempt, Reserve, Start, Wake
from presage.schedulers.core.forecasts import Forecaster, Forecasts
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.fleet import Fleet, FleetOptions, make_fleet
from presage.schedulers.kubernetes.gate.annotations import (
    Plan,
    Reservation,
    Rollbacks,
    parse_devices,
    parse_time_or_none,
)
from presage.schedulers.kubernetes.gate.observed import Observed, observe
from presage.schedulers.kubernetes.gate.pod_gang import PodGang, group_pods, requested_gpus
from presage.schedulers.kubernetes.gate.writes import (
    Annotate,
    Delete,
    EmitEvent,
    ObjectVersion,
    Release,
    Write,
    involved_object,
    object_version,
)
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_DEADLINE,
    DEVICES,
    PLAN,
    RESERVATION,
    ROLLBACKS,
)
from presage.schedulers.kubernetes.pods import annotation, bound_node, controller_of
from presage.schedulers.kubernetes.snapshot import Json, Snapshot
from presage.serving.server.log import log


class Step(NamedTuple):
    """What to write now, and when to look again if nothing happens until then."""

    writes: list[Write]
    again_s: float


class Gate:
    """What follows from a cluster's state: pure but for what it was foretold.

    Parameters
    ----------
    forecaster : callable
        Makes one that remembers nothing yet.
    """

    def __init__(
        self,
        policy: Policy,
        forecaster: Callable[[], Forecaster],
        fleet_options: FleetOptions | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._policy, self._fleet_options, self._seed = (
            policy,
            fleet_options or FleetOptions(),
            seed,
        )
        self.forecasts = PredictionCache(forecaster)
        self._nodes: Mapping[str, Json] | None = None
        self._fleet: Fleet | None = None  # of these nodes

    def step(
        self, snapshot: Snapshot, now_s: float, refused: Collection[ObjectVersion] = frozenset()
    ) -> Step:
        """The next thing to do: what was decided is brought to its end before more is decided.

        Of all gangs that can start or keep something, one: where the others can go is seen once it
        is written.

        Parameters
        ----------
        refused : collection of ObjectVersion
            Of what the API server would not have written a moment ago. It is left as it is: nobody
            else waits for it, nor gets what is planned there.
        """
        gangs = group_pods(snapshot.pods.values(), snapshot.pod_groups)
        writes: list[Write] = []
        again_s = math.inf
        stuck = {job_id for job_id, gang in gangs.items() if object_version(_face(gang)) in refused}
        for job_id, gang in gangs.items():
            mended = _mended(gang, snapshot.nodes, now_s, self._policy)
            left = [
                one for one in mended.writes if object_version(involved_object(one)) not in refused
            ]
            if len(left) < len(mended.writes):
                stuck.add(job_id)
            else:
                again_s = min(again_s, mended.again_s)
            writes += left
        if writes:
            return Step(writes, now_s)
        decided = self._decided(snapshot, gangs, now_s, stuck)
        return Step(decided.writes, min(again_s, decided.again_s))

    def why_not(self, snapshot: Snapshot, now_s: float) -> Mapping[str, str]:
        """Why gangs of which pods wait cannot be planned, by their job ids."""
        gangs = group_pods(snapshot.pods.values(), snapshot.pod_groups)
        found = self._observed(snapshot, gangs, now_s, ())
        return (
            found[0].hindered if found is not None else _without_fleet(gangs, self._fleet_options)
        )

    def _decided(
        self,
        snapshot: Snapshot,
        gangs: Mapping[str, PodGang],
        now_s: float,
        stuck: Collection[str],
    ) -> Step:
        found = self._observed(snapshot, gangs, now_s, stuck)
        if found is None:
            return Step(
                [
                    EmitEvent(_face(gangs[job_id]), "FailedScheduling", why, is_warning=True)
                    for job_id, why in _without_fleet(gangs, self._fleet_options).items()
                ],
                math.inf,
            )
        observed, forecasts = found
        said: list[Write] = [
            EmitEvent(_face(observed.gangs[job_id]), "FailedScheduling", why, is_warning=True)
            for job_id, why in observed.hindered.items()
        ]
        for gang in observed.without_devices:
            anywhere = {_uid(pod): "" for pod in gang.gated_pods}
            return Step([*said, *_planned(gang, anywhere, now_s)], now_s)
        state = State(observed.ledger, now_s, Progress())
        again_s = math.inf
        for action in self._policy.decide(state, forecasts, Random(self._seed)):  # noqa: S311
            if isinstance(action, Wake):
                again_s = min(again_s, action.at_s)
            if not isinstance(action, Preempt | Reserve | Start):
                continue
            try:
                observed.ledger.apply([action], now_s)
            except ImpossibleActionError as error:
                log(logging.WARNING, "not done", error=str(error))
                continue
            gang = observed.gangs[action.job_id]
            if isinstance(action, Preempt):
                return Step([*said, _came_to_nothing(gang, now_s)], now_s)
            devices = observed.fleet.format_devices(
                allocation.device for allocation in action.allocations
            )
            if isinstance(action, Reserve):
                kept = Reservation(devices, action.until_s)
                made: list[Write] = [_annotate(gang, {RESERVATION: kept.to_json()})]
            else:
                made = _planned(gang, _dealt(gang, devices, self._fleet_options.resource), now_s)
            return Step([*said, *made], now_s)
        return Step(said, again_s)

    def _observed(
        self,
        snapshot: Snapshot,
        gangs: Mapping[str, PodGang],
        now_s: float,
        stuck: Collection[str],
    ) -> tuple[Observed, Forecasts] | None:
        """What can be decided on, and what is foretold; None where no node has devices."""
        if snapshot.nodes is not self._nodes:
            self._nodes = snapshot.nodes
            self._fleet = make_fleet(snapshot.nodes.values(), self._fleet_options)
        if self._fleet is None:
            return None
        forecasts = self.forecasts.get(self._fleet.cluster, now_s)
        observed = observe(
            self._fleet, snapshot, gangs, self.forecasts, forecasts, self._policy, now_s, stuck
        )
        return observed, forecasts


def _without_fleet(gangs: Mapping[str, PodGang], fleet_options: FleetOptions) -> Mapping[str, str]:
    return {
        job_id: gang.blocking_reason(fleet_options.resource)
        or f"no node has {fleet_options.resource} to give"
        for job_id, gang in gangs.items()
        if gang.gated_pods
    }


def _planned(gang: PodGang, devices: Mapping[str, str], now_s: float) -> list[Write]:
    """Start a gang: pods of it by uid, each with its devices, "" of one that needs none."""
    if gang.group is None:
        (pod,) = gang.pods
        return [_release(pod, devices.get(_uid(pod), ""), now_s + gang.timeout_s)]
    before = {} if gang.plan is None else gang.plan.devices
    there = {_uid(pod) for pod in gang.pods}
    plan = Plan(
        {uid: named for uid, named in before.items() if uid in there} | dict(devices),
        None if gang.bound_count >= gang.min_member else now_s + gang.timeout_s,
        succeeded=tuple(sorted(gang.succeeded)),
    )
    where = ", ".join(named for named in devices.values() if named)
    return [
        _annotate(gang, {PLAN: plan.to_json(), RESERVATION: None}),
        EmitEvent(gang.group, "Planned", f"{len(devices)} pods: {where or 'anywhere'}"),
    ]


def _dealt(gang: PodGang, devices: str, resource: str) -> dict[str, str]:
    """Devices of a gang's tasks, in their order, to its pods in theirs; by uid."""
    named = parse_devices(devices)
    asking = gang.gated_pods_requesting(resource)
    size = requested_gpus(asking[0], resource)
    tasks = [named[first : first + size] for first in range(0, len(named), size)]
    dealt = {
        _uid(pod): ",".join(f"{node}/{number}" for node, number in task)
        for pod, task in zip(asking, tasks, strict=False)
    }
    return dealt | {_uid(pod): "" for pod in gang.gated_pods if pod not in asking}


def _mended(gang: PodGang, nodes: Mapping[str, Json], now_s: float, policy: Policy) -> Step:
    """What was decided of a gang, brought to its end, or taken back."""
    plan = gang.plan
    if gang.bound_count < gang.min_member:
        lost = _lost(gang, now_s)
        if lost is not None:
            return Step([_annotate(gang, {PLAN: lost.to_json(), RESERVATION: None})], now_s)
    if plan is not None and plan.is_rolled_back:
        return _taken_back(gang, plan, now_s)
    if plan is not None and gang.bound_count < gang.min_member:
        return _not_whole(gang, plan, nodes, now_s)
    first = _kept(gang, now_s, policy) if plan is None else _whole(gang, plan, now_s)
    then = _unbound_too_long(gang, now_s)
    return Step(first.writes + then.writes, min(first.again_s, then.again_s))


def _lost(gang: PodGang, now_s: float) -> Plan | None:
    """Of a gang whose plan somebody took away, or pods out of it; None of any other."""
    plan = gang.plan or Plan(bind_deadline_s=now_s + gang.timeout_s)
    started = {
        _uid(pod): annotation(pod, DEVICES)
        for pod in gang.released_pods
        if _is_ours(pod) and _uid(pod) not in plan.devices
    }
    if not started or gang.group is None:
        return None
    return replace(plan, devices={**plan.devices, **started})


def _kept(gang: PodGang, now_s: float, policy: Policy) -> Step:
    """Of a gang that was not started: at its end a reservation is given back, or if it is longer
    than the gate makes them.
    """
    kept = gang.reservation
    if kept is None:
        return Step([], math.inf)
    if (
        kept.until_s > now_s + policy.reservation_s(gang.rollbacks.count) + 1.0
    ):  # somebody else wrote it
        return Step([_annotate(gang, {RESERVATION: None})], now_s)
    if gang.gated_pods and now_s < kept.until_s:
        return Step([], kept.until_s)
    return Step([_came_to_nothing(gang, now_s)], now_s)


def _taken_back(gang: PodGang, plan: Plan, now_s: float) -> Step:
    """Once none of its pods is left, it waits as before."""
    left: list[Write] = [
        Delete(pod, "its gang was not whole in time")
        for pod in gang.released_pods
        if _uid(pod) in plan.devices
    ]
    return Step(left or [_came_to_nothing(gang, now_s)], now_s)


def _whole(gang: PodGang, plan: Plan, now_s: float) -> Step:
    """A quorum is bound: who comes later has time of its own."""
    if gang.is_done:
        return Step([_annotate(gang, {PLAN: None})], now_s)
    done = tuple(sorted(gang.succeeded))
    if plan.bind_deadline_s is not None or plan.succeeded != done:
        known = replace(plan, bind_deadline_s=None, succeeded=done)
        return Step([_annotate(gang, {PLAN: known.to_json()})], now_s)
    return Step(_releases(gang, plan, now_s + gang.timeout_s), math.inf)


def _not_whole(gang: PodGang, plan: Plan, nodes: Mapping[str, Json], now_s: float) -> Step:
    """Not yet, or no longer: it has a time to become so."""
    if gang.is_done:
        return Step([_annotate(gang, {PLAN: None})], now_s)
    if (
        not gang.released_pods and not gang.pods_to_release
    ):  # it has nothing, but some have done their part
        return Step([], math.inf)
    by_s = plan.bind_deadline_s
    if by_s is None:
        by_s = now_s + gang.timeout_s
        return Step([_annotate(gang, {PLAN: replace(plan, bind_deadline_s=by_s).to_json()})], now_s)
    why = _why_lost(gang, plan, nodes, late=now_s >= by_s)
    if why:
        back = _annotate(gang, {PLAN: replace(plan, is_rolled_back=True).to_json()})
        return Step([back, EmitEvent(_face(gang), "PlanRolledBack", why, is_warning=True)], now_s)
    return Step(_releases(gang, plan, by_s), by_s)


def _releases(gang: PodGang, plan: Plan, bind_deadline_s: float) -> list[Write]:
    return [_release(pod, plan.devices[_uid(pod)], bind_deadline_s) for pod in gang.pods_to_release]


def _why_lost(gang: PodGang, plan: Plan, nodes: Mapping[str, Json], *, late: bool) -> str:
    """Why a gang that is not whole will not be in time; "" while it may."""
    if late:
        return (
            f"{gang.bound_count} of {gang.min_member} pods were bound within {gang.timeout_s:g} s; "
            "all of them are deleted, to be created and planned anew"
        )
    unbound = [pod for pod in (*gang.released_pods, *gang.pods_to_release) if not bound_node(pod)]
    at = [parse_devices(plan.devices.get(_uid(pod), ""))[:1] for pod in unbound]
    gone = [node for one in at for node, _ in one if node not in nodes]
    if not gone or gang.bound_count + len(unbound) - len(gone) >= gang.min_member:
        return ""
    nodes_gone = ", ".join(sorted(set(gone)))
    return f"{nodes_gone} of its plan is gone; its pods are deleted, to be planned anew"


def _unbound_too_long(gang: PodGang, now_s: float) -> Step:
    """Released pods of a gang that runs without them, or of none: their plan does not hold."""
    writes: list[Write] = []
    again_s = math.inf
    for pod in gang.released_pods:
        by_s = parse_time_or_none(annotation(pod, BIND_DEADLINE))
        if by_s is not None and not bound_node(pod) and _is_ours(pod):
            if now_s >= by_s:
                writes.append(Delete(pod, "it was not bound in time"))
            again_s = min(again_s, by_s)
    return Step(writes, again_s)


def _came_to_nothing(gang: PodGang, now_s: float) -> Annotate:
    """All of it is given back, and it takes its turn behind those that came before now (A5)."""
    back = Rollbacks(gang.rollbacks.count + 1, now_s)
    done = Plan(succeeded=tuple(sorted(gang.succeeded))).to_json() if gang.succeeded else None
    return _annotate(gang, {PLAN: done, RESERVATION: None, ROLLBACKS: back.to_json()})


def _release(pod: Json, devices: str, bind_deadline_s: float) -> Release:
    named = parse_devices(devices)
    return Release(pod, named[0][0] if named else "", devices, bind_deadline_s)


def _annotate(gang: PodGang, annotations: Mapping[str, str | None]) -> Annotate:
    assert gang.group is not None
    return Annotate(gang.group, annotations)


def _is_ours(pod: Json) -> bool:
    """Whether the gate released a pod; copies of one that it did release are nobody's."""
    return bool(annotation(pod, BIND_DEADLINE)) and controller_of(pod) is not None


def _face(gang: PodGang) -> Json:
    """What a user looks at."""
    return gang.group if gang.group is not None else gang.pods[0]


def _uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])
