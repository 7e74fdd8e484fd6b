"""Fields of pods, read from JSON of the API server."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

from kubernetes.utils.quantity import parse_quantity

from presage.schedulers.kubernetes.kubernetes_names import GATE, POD_GROUP_LABEL
from presage.schedulers.kubernetes.snapshot import Json

NamespacedName = tuple[str, str]  # namespace and name
ResourceList = Mapping[str, int]  # quantity of each resource, such as "cpu", in thousandths

MILLI = 1000

_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def namespaced_name(obj: Json) -> NamespacedName:
    """Return namespace and name of a pod or a PodGroup."""
    metadata = obj["metadata"]
    return metadata["namespace"], metadata["name"]


def pod_group_name(pod: Json) -> NamespacedName | None:
    """Return the PodGroup that a pod's label names."""
    group = (pod["metadata"].get("labels") or {}).get(POD_GROUP_LABEL)
    return (pod["metadata"]["namespace"], group) if group else None


def scheduling_gates(pod: Json) -> list[str]:
    """Return the remaining scheduling gates of a pod."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def is_waiting_for_plan(pod: Json) -> bool:
    """Return whether the gate of Presage is the only one that holds a pod back."""
    return scheduling_gates(pod) == [GATE] and not is_finished(pod) and not is_terminating(pod)


def is_finished(pod: Json) -> bool:
    """Return whether a pod has succeeded or failed: it uses no resources."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_succeeded(pod: Json) -> bool:
    """Return whether a pod has succeeded."""
    return bool((pod.get("status") or {}).get("phase") == "Succeeded")


def is_terminating(pod: Json) -> bool:
    """Return whether a pod is being deleted; it uses its resources until it is gone."""
    return "deletionTimestamp" in pod["metadata"]


def bound_node(pod: Json) -> str:
    """Return the node that a pod is bound to; "" if it is not bound."""
    return pod["spec"].get("nodeName") or ""


def controller_of(pod: Json) -> Json | None:
    """Return the owner reference of a pod's controller, which recreates the pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def annotation(obj: Json, name: str) -> str:
    """Return an annotation of an object; empty if it is missing."""
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def rank_key(pod: Json) -> tuple[object, ...]:
    """Sort key of a gang's pods: completion index, or else name, with numbers as numbers."""
    index = annotation(pod, _COMPLETION_INDEX)
    if re.fullmatch("[0-9]{1,9}", index):
        return (0, int(index))
    parts = re.split(r"(\d+)", pod["metadata"]["name"])
    return (1, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts])


def resource_requests(pod: Json) -> ResourceList:
    """Return the effective resource requests of a pod, with 1 of the resource "pods".

    They are the sum over containers and sidecars, or the largest init container with the sidecars
    started before it if that is more. Pod-level requests override them.

    References
    ----------
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
    """
    metadata = pod["metadata"]
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    cached = _requests_by_uid.get(uid)
    if cached is not None and cached[0] == version:
        return cached[1]
    requests = _compute_requests(pod)
    if uid and version:  # otherwise the pod is not from an API server
        if len(_requests_by_uid) >= _MAX_CACHED_PODS:
            _requests_by_uid.clear()
        _requests_by_uid[uid] = version, requests
    return requests


_requests_by_uid: dict[str | None, tuple[str, ResourceList]] = {}  # with the pod's version
_MAX_CACHED_PODS = 100_000


def _compute_requests(pod: Json) -> ResourceList:
    spec = pod["spec"]
    sidecars: ResourceList = {}
    peak: ResourceList = {}
    for container in spec.get("initContainers") or ():
        requests = _own_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum([sidecars, requests])
            requests = {}
        peak = _max(peak, _sum([sidecars, requests]))
    running = _sum([sidecars, *map(_own_requests, spec["containers"])])
    overhead = {name: parse_milli(text) for name, text in (spec.get("overhead") or {}).items()}
    pod_level = {**_max(peak, running), **_own_requests(spec)}
    return _sum([pod_level, overhead, {"pods": MILLI}])


@lru_cache(maxsize=4096)
def parse_milli(text: str | int) -> int:
    """Return a quantity such as "500m" or "64Gi" in thousandths, rounded up; 0 if invalid."""
    try:
        exact: Decimal = parse_quantity(text)
    except ValueError:
        return 0
    return math.ceil(exact * MILLI)


def _own_requests(spec: Json) -> ResourceList:
    """Return the requests of a container or a pod's spec; they default to the limits."""
    resources = spec.get("resources") or {}
    quantities = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_milli(text) for name, text in quantities.items()}


def _sum(parts: Iterable[ResourceList]) -> ResourceList:
    total: dict[str, int] = {}
    for part in parts:
        for name, quantity in part.items():
            total[name] = total.get(name, 0) + quantity
    return total


def _max(a: ResourceList, b: ResourceList) -> ResourceList:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}
