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
from presage.schedulers.kubernetes.fleet import Fleet, Reading, fleet_of
from presage.schedulers.kubernetes.gate.annotations import (
    Plan,
    Reservation,
    RolledBack,
    devices_named,
    seconds_or_none,
)
from presage.schedulers.kubernetes.gate.observed import Observed, observe
from presage.schedulers.kubernetes.gate.pod_gang import PodGang, gangs_of, gpus_of
from presage.schedulers.kubernetes.gate.writes import (
    Annotate,
    Delete,
    Release,
    Say,
    Version,
    Write,
    subject,
    version_of,
)
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_BY,
    DEVICES,
    PLAN,
    RESERVED,
    ROLLED_BACK,
)
from presage.schedulers.kubernetes.pods import annotation, bound_to, owner_of
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
        reading: Reading | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self._policy, self._reading, self._seed = policy, reading or Reading(), seed
        self.forecasts = PredictionCache(forecaster)
        self._nodes: Mapping[str, Json] | None = None
        self._fleet: Fleet | None = None  # of these nodes

    def step(
        self, snapshot: Snapshot, now_s: float, refused: Collection[Version] = frozenset()
    ) -> Step:
        """The next thing to do: what was decided is brought to its end before more is decided.

        Of all gangs that can start or keep something, one: where the others can go is seen once it
        is written.

        Parameters
        ----------
        refused : collection of Version
            Of what the API server would not have written a moment ago. It is left as it is: nobody
            else waits for it, nor gets what is planned there.
        """
        gangs = gangs_of(snapshot.pods.values(), snapshot.pod_groups)
        writes: list[Write] = []
        again_s = math.inf
        stuck = {job_id for job_id, gang in gangs.items() if version_of(_face(gang)) in refused}
        for job_id, gang in gangs.items():
            mended = _mended(gang, snapshot.nodes, now_s, self._policy)
            left = [one for one in mended.writes if version_of(subject(one)) not in refused]
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
        gangs = gangs_of(snapshot.pods.values(), snapshot.pod_groups)
        found = self._observed(snapshot, gangs, now_s, ())
        return found[0].hindered if found is not None else _without_fleet(gangs, self._reading)

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
                    Say(_face(gangs[job_id]), "NotPlanned", why, warns=True)
                    for job_id, why in _without_fleet(gangs, self._reading).items()
                ],
                math.inf,
            )
        observed, forecasts = found
        said: list[Write] = [
            Say(_face(observed.gangs[job_id]), "NotPlanned", why, warns=True)
            for job_id, why in observed.hindered.items()
        ]
        for gang in observed.without_devices:
            anywhere = {_uid(pod): "" for pod in gang.waiting}
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
            devices = observed.fleet.names(allocation.device for allocation in action.allocations)
            if isinstance(action, Reserve):
                kept = Reservation(devices, action.until_s)
                made: list[Write] = [_annotate(gang, {RESERVED: kept.to_json()})]
            else:
                made = _planned(gang, _dealt(gang, devices, self._reading.resource), now_s)
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
            self._fleet = fleet_of(snapshot.nodes.values(), self._reading)
        if self._fleet is None:
            return None
        forecasts = self.forecasts.get(self._fleet.cluster, now_s)
        observed = observe(
            self._fleet, snapshot, gangs, self.forecasts, forecasts, self._policy, now_s, stuck
        )
        return observed, forecasts


def _without_fleet(gangs: Mapping[str, PodGang], reading: Reading) -> Mapping[str, str]:
    return {
        job_id: gang.why_not(reading.resource) or f"no node has {reading.resource} to give"
        for job_id, gang in gangs.items()
        if gang.waiting
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
        None if gang.bound >= gang.min_member else now_s + gang.timeout_s,
        succeeded=tuple(sorted(gang.succeeded)),
    )
    where = ", ".join(named for named in devices.values() if named)
    return [
        _annotate(gang, {PLAN: plan.to_json(), RESERVED: None}),
        Say(gang.group, "Planned", f"{len(devices)} pods: {where or 'anywhere'}"),
    ]


def _dealt(gang: PodGang, devices: str, resource: str) -> dict[str, str]:
    """Devices of a gang's tasks, in their order, to its pods in theirs; by uid."""
    named = devices_named(devices)
    asking = gang.waiting_with(resource)
    size = gpus_of(asking[0], resource)
    tasks = [named[first : first + size] for first in range(0, len(named), size)]
    dealt = {
        _uid(pod): ",".join(f"{node}/{number}" for node, number in task)
        for pod, task in zip(asking, tasks, strict=False)
    }
    return dealt | {_uid(pod): "" for pod in gang.waiting if pod not in asking}


def _mended(gang: PodGang, nodes: Mapping[str, Json], now_s: float, policy: Policy) -> Step:
    """What was decided of a gang, brought to its end, or taken back."""
    plan = gang.plan
    if gang.bound < gang.min_member:
        lost = _lost(gang, now_s)
        if lost is not None:
            return Step([_annotate(gang, {PLAN: lost.to_json(), RESERVED: None})], now_s)
    if plan is not None and plan.taken_back:
        return _taken_back(gang, plan, now_s)
    if plan is not None and gang.bound < gang.min_member:
        return _not_whole(gang, plan, nodes, now_s)
    first = _kept(gang, now_s, policy) if plan is None else _whole(gang, plan, now_s)
    then = _unbound_too_long(gang, now_s)
    return Step(first.writes + then.writes, min(first.again_s, then.again_s))


def _lost(gang: PodGang, now_s: float) -> Plan | None:
    """Of a gang whose plan somebody took away, or pods out of it; None of any other."""
    plan = gang.plan or Plan(bind_by_s=now_s + gang.timeout_s)
    started = {
        _uid(pod): annotation(pod, DEVICES)
        for pod in gang.released
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
        kept.until_s > now_s + policy.reservation_s(gang.rolled_back.times) + 1.0
    ):  # somebody else wrote it
        return Step([_annotate(gang, {RESERVED: None})], now_s)
    if gang.waiting and now_s < kept.until_s:
        return Step([], kept.until_s)
    return Step([_came_to_nothing(gang, now_s)], now_s)


def _taken_back(gang: PodGang, plan: Plan, now_s: float) -> Step:
    """Once none of its pods is left, it waits as before."""
    left: list[Write] = [
        Delete(pod, "its gang was not whole in time")
        for pod in gang.released
        if _uid(pod) in plan.devices
    ]
    return Step(left or [_came_to_nothing(gang, now_s)], now_s)


def _whole(gang: PodGang, plan: Plan, now_s: float) -> Step:
    """A quorum is bound: who comes later has time of its own."""
    if gang.is_done:
        return Step([_annotate(gang, {PLAN: None})], now_s)
    done = tuple(sorted(gang.succeeded))
    if plan.bind_by_s is not None or plan.succeeded != done:
        known = replace(plan, bind_by_s=None, succeeded=done)
        return Step([_annotate(gang, {PLAN: known.to_json()})], now_s)
    return Step(_releases(gang, plan, now_s + gang.timeout_s), math.inf)


def _not_whole(gang: PodGang, plan: Plan, nodes: Mapping[str, Json], now_s: float) -> Step:
    """Not yet, or no longer: it has a time to become so."""
    if gang.is_done:
        return Step([_annotate(gang, {PLAN: None})], now_s)
    if not gang.released and not gang.to_release:  # it has nothing, but some have done their part
        return Step([], math.inf)
    by_s = plan.bind_by_s
    if by_s is None:
        by_s = now_s + gang.timeout_s
        return Step([_annotate(gang, {PLAN: replace(plan, bind_by_s=by_s).to_json()})], now_s)
    why = _why_lost(gang, plan, nodes, late=now_s >= by_s)
    if why:
        back = _annotate(gang, {PLAN: replace(plan, taken_back=True).to_json()})
        return Step([back, Say(_face(gang), "TakenBack", why, warns=True)], now_s)
    return Step(_releases(gang, plan, by_s), by_s)


def _releases(gang: PodGang, plan: Plan, bind_by_s: float) -> list[Write]:
    return [_release(pod, plan.devices[_uid(pod)], bind_by_s) for pod in gang.to_release]


def _why_lost(gang: PodGang, plan: Plan, nodes: Mapping[str, Json], *, late: bool) -> str:
    """Why a gang that is not whole will not be in time; "" while it may."""
    if late:
        return (
            f"{gang.bound} of {gang.min_member} pods were bound within {gang.timeout_s:g} s; "
            "all of them are deleted, to be created and planned anew"
        )
    unbound = [pod for pod in (*gang.released, *gang.to_release) if not bound_to(pod)]
    at = [devices_named(plan.devices.get(_uid(pod), ""))[:1] for pod in unbound]
    gone = [node for one in at for node, _ in one if node not in nodes]
    if not gone or gang.bound + len(unbound) - len(gone) >= gang.min_member:
        return ""
    nodes_gone = ", ".join(sorted(set(gone)))
    return f"{nodes_gone} of its plan is gone; its pods are deleted, to be planned anew"


def _unbound_too_long(gang: PodGang, now_s: float) -> Step:
    """Released pods of a gang that runs without them, or of none: their plan does not hold."""
    writes: list[Write] = []
    again_s = math.inf
    for pod in gang.released:
        by_s = seconds_or_none(annotation(pod, BIND_BY))
        if by_s is not None and not bound_to(pod) and _is_ours(pod):
            if now_s >= by_s:
                writes.append(Delete(pod, "it was not bound in time"))
            again_s = min(again_s, by_s)
    return Step(writes, again_s)


def _came_to_nothing(gang: PodGang, now_s: float) -> Annotate:
    """All of it is given back, and it takes its turn behind those that came before now (A5)."""
    back = RolledBack(gang.rolled_back.times + 1, now_s)
    done = Plan(succeeded=tuple(sorted(gang.succeeded))).to_json() if gang.succeeded else None
    return _annotate(gang, {PLAN: done, RESERVED: None, ROLLED_BACK: back.to_json()})


def _release(pod: Json, devices: str, bind_by_s: float) -> Release:
    named = devices_named(devices)
    return Release(pod, named[0][0] if named else "", devices, bind_by_s)


def _annotate(gang: PodGang, annotations: Mapping[str, str | None]) -> Annotate:
    assert gang.group is not None
    return Annotate(gang.group, annotations)


def _is_ours(pod: Json) -> bool:
    """Whether the gate released a pod; copies of one that it did release are nobody's."""
    return bool(annotation(pod, BIND_BY)) and owner_of(pod) is not None


def _face(gang: PodGang) -> Json:
    """What a user looks at."""
    return gang.group if gang.group is not None else gang.pods[0]


def _uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])
