"""Writes by which a gang is planned, released and rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from presage.schedulers.kubernetes.gate.annotations import Plan, Rollbacks, parse_devices
from presage.schedulers.kubernetes.gate.pod_gang import PodGang, requested_gpus
from presage.schedulers.kubernetes.gate.writes import Annotate, EmitEvent, Release, Write
from presage.schedulers.kubernetes.kubernetes_names import PLAN, RESERVATION, ROLLBACKS
from presage.schedulers.kubernetes.snapshot import Json


class Step(NamedTuple):
    """Writes to perform now, and the time of the next pass if nothing changes before."""

    writes: list[Write]
    next_pass_s: float


def plan_gang(gang: PodGang, devices: Mapping[str, str], now_s: float) -> list[Write]:
    """Return the writes that start a gang.

    Parameters
    ----------
    devices : mapping of str to str
        Devices of each pod to start, by uid; "" for a pod that needs none.
    """
    if gang.group is None:
        (pod,) = gang.pods
        return [release(pod, devices.get(uid(pod), ""), now_s + gang.timeout_s)]
    earlier = {} if gang.plan is None else gang.plan.devices
    existing = {uid(pod) for pod in gang.pods}
    plan = Plan(
        {pod: planned for pod, planned in earlier.items() if pod in existing} | dict(devices),
        None if gang.bound_count >= gang.min_member else now_s + gang.timeout_s,
        succeeded=tuple(sorted(gang.succeeded)),
    )
    places = ", ".join(planned for planned in devices.values() if planned)
    return [
        annotate(gang, {PLAN: plan.to_json(), RESERVATION: None}),
        EmitEvent(gang.group, "Planned", f"{len(devices)} pods: {places or 'anywhere'}"),
    ]


def assign_devices(gang: PodGang, devices: str, resource: str) -> dict[str, str]:
    """Return the devices of each gated pod by uid: those of the gang's tasks, in pod order."""
    planned = parse_devices(devices)
    requesting = gang.gated_pods_requesting(resource)
    size = requested_gpus(requesting[0], resource)
    tasks = [planned[first : first + size] for first in range(0, len(planned), size)]
    assigned = {
        uid(pod): ",".join(f"{node}/{number}" for node, number in task)
        for pod, task in zip(requesting, tasks, strict=False)
    }
    return assigned | {uid(pod): "" for pod in gang.gated_pods if pod not in requesting}


def roll_back(gang: PodGang, now_s: float) -> Annotate:
    """Return the write that ends a gang's plan or reservation.

    The gang waits again, behind the gangs that were rolled back earlier (requirement A5).
    """
    rollbacks = Rollbacks(gang.rollbacks.count + 1, now_s)
    done = Plan(succeeded=tuple(sorted(gang.succeeded))).to_json() if gang.succeeded else None
    return annotate(gang, {PLAN: done, RESERVATION: None, ROLLBACKS: rollbacks.to_json()})


def release(pod: Json, devices: str, bind_deadline_s: float) -> Release:
    """Return the write that removes a pod's gate and restricts it to the node of its devices."""
    planned = parse_devices(devices)
    return Release(pod, planned[0][0] if planned else "", devices, bind_deadline_s)


def annotate(gang: PodGang, annotations: Mapping[str, str | None]) -> Annotate:
    """Return the write that changes annotations of a gang's PodGroup."""
    assert gang.group is not None
    return Annotate(gang.group, annotations)


def event_object(gang: PodGang) -> Json:
    """Return the object that events about a gang regard: its PodGroup, else its pod."""
    return gang.group if gang.group is not None else gang.pods[0]


def uid(pod: Json) -> str:
    """Return the uid of a pod."""
    return str(pod["metadata"]["uid"])
