"""Completion of earlier decisions: a planned gang is released, or rolled back if it cannot run.

A gang has *quorum* while at least ``min_member`` of its pods are bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from presage.schedulers.core.policy import Policy
from presage.schedulers.kubernetes.gate.annotations import Plan, parse_devices, parse_time_or_none
from presage.schedulers.kubernetes.gate.gang_writes import (
    Step,
    annotate,
    event_object,
    release,
    roll_back,
    uid,
)
from presage.schedulers.kubernetes.gate.pod_gang import PodGang
from presage.schedulers.kubernetes.gate.writes import Delete, EmitEvent, Write
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_DEADLINE,
    DEVICES,
    PLAN,
    RESERVATION,
)
from presage.schedulers.kubernetes.pods import annotation, bound_node, controller_of
from presage.schedulers.kubernetes.snapshot import Json


def complete(gang: PodGang, nodes: Mapping[str, Json], now_s: float, policy: Policy) -> Step:
    """Return the writes that complete what was decided about a gang, or roll it back."""
    plan = gang.plan
    if gang.bound_count < gang.min_member:
        restored = _restored_plan(gang, now_s)
        if restored is not None:
            return Step([annotate(gang, {PLAN: restored.to_json(), RESERVATION: None})], now_s)
    if plan is not None and plan.is_rolled_back:
        return _complete_rollback(gang, plan, now_s)
    if plan is not None and gang.bound_count < gang.min_member:
        return _without_quorum(gang, plan, nodes, now_s)
    first = (
        _check_reservation(gang, now_s, policy) if plan is None else _with_quorum(gang, plan, now_s)
    )
    then = _delete_unbound(gang, now_s)
    return Step(first.writes + then.writes, min(first.next_pass_s, then.next_pass_s))


def _restored_plan(gang: PodGang, now_s: float) -> Plan | None:
    """Return the plan of a gang whose annotation lost it or some of its pods; None for others."""
    plan = gang.plan or Plan(bind_deadline_s=now_s + gang.timeout_s)
    started = {
        uid(pod): annotation(pod, DEVICES)
        for pod in gang.released_pods
        if _is_released_by_gate(pod) and uid(pod) not in plan.devices
    }
    if not started or gang.group is None:
        return None
    return replace(plan, devices={**plan.devices, **started})


def _check_reservation(gang: PodGang, now_s: float, policy: Policy) -> Step:
    """End a reservation that has expired, or that is longer than the gate's reservations."""
    reservation = gang.reservation
    if reservation is None:
        return Step([], math.inf)
    longest_s = policy.reservation_s(gang.rollbacks.count)
    if reservation.until_s > now_s + longest_s + 1.0:  # another program wrote it
        return Step([annotate(gang, {RESERVATION: None})], now_s)
    if gang.gated_pods and now_s < reservation.until_s:
        return Step([], reservation.until_s)
    return Step([roll_back(gang, now_s)], now_s)


def _complete_rollback(gang: PodGang, plan: Plan, now_s: float) -> Step:
    """Delete the pods of a plan; once none is left, the gang waits again."""
    deletions: list[Write] = [
        Delete(pod, "its gang did not reach quorum in time")
        for pod in gang.released_pods
        if uid(pod) in plan.devices
    ]
    return Step(deletions or [roll_back(gang, now_s)], now_s)


def _with_quorum(gang: PodGang, plan: Plan, now_s: float) -> Step:
    """Release the pods that joined later; each has the gang's timeout to be bound."""
    if gang.is_done:
        return Step([annotate(gang, {PLAN: None})], now_s)
    done = tuple(sorted(gang.succeeded))
    if plan.bind_deadline_s is not None or plan.succeeded != done:
        current = replace(plan, bind_deadline_s=None, succeeded=done)
        return Step([annotate(gang, {PLAN: current.to_json()})], now_s)
    return Step(_releases(gang, plan, now_s + gang.timeout_s), math.inf)


def _without_quorum(gang: PodGang, plan: Plan, nodes: Mapping[str, Json], now_s: float) -> Step:
    """Release the pods of a plan, or roll it back if quorum is not reached by its deadline."""
    if gang.is_done:
        return Step([annotate(gang, {PLAN: None})], now_s)
    if not gang.released_pods and not gang.pods_to_release:  # some have succeeded, none is left
        return Step([], math.inf)
    deadline_s = plan.bind_deadline_s
    if deadline_s is None:
        limited = replace(plan, bind_deadline_s=now_s + gang.timeout_s)
        return Step([annotate(gang, {PLAN: limited.to_json()})], now_s)
    why = _why_no_quorum(gang, plan, nodes, is_late=now_s >= deadline_s)
    if why:
        mark = annotate(gang, {PLAN: replace(plan, is_rolled_back=True).to_json()})
        event = EmitEvent(event_object(gang), "PlanRolledBack", why, is_warning=True)
        return Step([mark, event], now_s)
    return Step(_releases(gang, plan, deadline_s), deadline_s)


def _releases(gang: PodGang, plan: Plan, bind_deadline_s: float) -> list[Write]:
    return [release(pod, plan.devices[uid(pod)], bind_deadline_s) for pod in gang.pods_to_release]


def _why_no_quorum(gang: PodGang, plan: Plan, nodes: Mapping[str, Json], *, is_late: bool) -> str:
    """Return why a gang will not reach quorum in time; "" while it may."""
    if is_late:
        return (
            f"{gang.bound_count} of {gang.min_member} pods were bound within {gang.timeout_s:g} s; "
            "all pods are deleted, and planned again once they are recreated"
        )
    unbound = [pod for pod in (*gang.released_pods, *gang.pods_to_release) if not bound_node(pod)]
    first_devices = [parse_devices(plan.devices.get(uid(pod), ""))[:1] for pod in unbound]
    lost = [node for devices in first_devices for node, _ in devices if node not in nodes]
    if not lost or gang.bound_count + len(unbound) - len(lost) >= gang.min_member:
        return ""
    names = ", ".join(sorted(set(lost)))
    return (
        f"planned nodes do not exist any more: {names}; the pods are deleted, and planned again "
        "once they are recreated"
    )


def _delete_unbound(gang: PodGang, now_s: float) -> Step:
    """Delete released pods that were not bound in time, of a gang that runs without them."""
    writes: list[Write] = []
    next_pass_s = math.inf
    for pod in gang.released_pods:
        deadline_s = parse_time_or_none(annotation(pod, BIND_DEADLINE))
        if deadline_s is not None and not bound_node(pod) and _is_released_by_gate(pod):
            if now_s >= deadline_s:
                writes.append(Delete(pod, "it was not bound in time"))
            next_pass_s = min(next_pass_s, deadline_s)
    return Step(writes, next_pass_s)


def _is_released_by_gate(pod: Json) -> bool:
    """Return whether the gate released a pod; a copy of such a pod has no controller."""
    return bool(annotation(pod, BIND_DEADLINE)) and controller_of(pod) is not None
