"""What a pod says of itself, as the API server has it: raw JSON in Kubernetes' own spelling."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

from kubernetes.utils.quantity import parse_quantity

from presage.schedulers.kubernetes.kubernetes_names import GATE, POD_GROUP_LABEL
from presage.schedulers.kubernetes.snapshot import Json

Name = tuple[str, str]  # of a namespace, and in it
Amounts = Mapping[str, int]  # thousandths of each resource, such as "cpu"

MILLI = 1000

_INDEX = "batch.kubernetes.io/job-completion-index"


def name_of(thing: Json) -> Name:
    """Of a pod or a PodGroup."""
    metadata = thing["metadata"]
    return metadata["namespace"], metadata["name"]


def group_of(pod: Json) -> Name | None:
    """The PodGroup that a pod says it is of."""
    group = (pod["metadata"].get("labels") or {}).get(POD_GROUP_LABEL)
    return (pod["metadata"]["namespace"], group) if group else None


def gates(pod: Json) -> list[str]:
    """Scheduling gates that a pod still has."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def waits(pod: Json) -> bool:
    """Whether a pod waits for its gang's plan, and for nothing else."""
    return gates(pod) == [GATE] and not is_over(pod) and not is_going(pod)


def is_over(pod: Json) -> bool:
    """Whether a pod has ended: it holds nothing."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_succeeded(pod: Json) -> bool:
    """Whether a pod has done what it had to."""
    return bool((pod.get("status") or {}).get("phase") == "Succeeded")


def is_going(pod: Json) -> bool:
    """Whether a pod is being deleted; it holds what it has until it is gone."""
    return "deletionTimestamp" in pod["metadata"]


def bound_to(pod: Json) -> str:
    """The node that a pod was bound to; "" of none."""
    return pod["spec"].get("nodeName") or ""


def owner_of(pod: Json) -> Json | None:
    """Who creates a pod anew when it is deleted."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def annotation(thing: Json, name: str) -> str:
    """Of a thing; empty where there is none."""
    return str((thing["metadata"].get("annotations") or {}).get(name, ""))


def rank(pod: Json) -> tuple[object, ...]:
    """Sorts the pods of a gang as their job numbers them, else by name, numbers as numbers."""
    index = annotation(pod, _INDEX)
    if re.fullmatch("[0-9]{1,9}", index):
        return (0, int(index))
    parts = re.split(r"(\d+)", pod["metadata"]["name"])
    return (1, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts])


def requests(pod: Json) -> Amounts:
    """What a node must have for a pod: of each resource, and one place for the pod itself.

    Its containers and sidecars together, or the init container that needs most, with the sidecars
    that were started before it; of what the pod as a whole asks for, that instead.

    References
    ----------
    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
    """
    metadata = pod["metadata"]
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    known = _known.get(uid)
    if known is not None and known[0] == version:
        return known[1]
    found = _requests(pod)
    if uid and version:  # else it is not of an API server
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[uid] = version, found
    return found


_known: dict[str | None, tuple[str, Amounts]] = {}  # by uid: the version of a pod, and its requests
_MOST_KNOWN = 100_000


def _requests(pod: Json) -> Amounts:
    spec = pod["spec"]
    sidecars: Amounts = {}
    most: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum([sidecars, asked])
            asked = {}
        most = _most(most, _sum([sidecars, asked]))
    running = _sum([sidecars, *map(_asked, spec["containers"])])
    overhead = {name: amount(text) for name, text in (spec.get("overhead") or {}).items()}
    whole = {**_most(most, running), **_asked(spec)}
    return _sum([whole, overhead, {"pods": MILLI}])


@lru_cache(maxsize=4096)
def amount(text: str | int) -> int:
    """Thousandths of a quantity such as "500m" or "64Gi", rounded up; 0 where it is none."""
    try:
        exact: Decimal = parse_quantity(text)
    except ValueError:
        return 0
    return math.ceil(exact * MILLI)


def _asked(container: Json) -> Amounts:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(text) for name, text in asked.items()}


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: dict[str, int] = {}
    for part in parts:
        for name, much in part.items():
            total[name] = total.get(name, 0) + much
    return total


def _most(a: Amounts, b: Amounts) -> Amounts:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}
