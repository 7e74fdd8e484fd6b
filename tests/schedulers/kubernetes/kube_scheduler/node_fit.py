"""Filter plugins of the fake kube-scheduler.

NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit of kubernetes/kubernetes
pkg/scheduler/framework/plugins; the other plugins are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import NamedTuple

from kubernetes.utils.quantity import parse_quantity

from tests.schedulers.kubernetes.api_server.statuses import Json

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
ResourceList = dict[str, Decimal]


class Rejection(NamedTuple):
    """Reason why a pod does not fit; ``resolvable`` if preemption could help."""

    message: str
    resolvable: bool


def resource_requests(pod: Json, ignored: frozenset[str] = frozenset()) -> ResourceList:
    """Return the requests of a pod: the sum of its containers, or its largest init container."""
    total: ResourceList = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(amount)
    for container in pod["spec"].get("initContainers", []):
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] = max(total.get(name, Decimal(0)), parse_quantity(amount))
    return {name: amount for name, amount in total.items() if name not in ignored}


def reject(
    pod: Json, node: Json, others: Iterable[Json], ignored: frozenset[str] = frozenset()
) -> Rejection | None:
    """Return why a pod does not fit on a node with ``others``; None if it fits.

    Parameters
    ----------
    ignored : frozenset of str
        Resources that only an extender manages (``ignoredByScheduler``).
    """
    spec, tolerations = node["spec"], pod["spec"].get("tolerations", [])
    if spec.get("unschedulable") and not is_tolerated(UNSCHEDULABLE, tolerations):
        return Rejection("node(s) were unschedulable", resolvable=False)
    for taint in spec.get("taints", []):
        if taint["effect"] != "PreferNoSchedule" and not is_tolerated(taint, tolerations):
            return Rejection("node(s) had untolerated taint(s)", resolvable=False)
    if not is_selected(pod, node):
        return Rejection("node(s) didn't match Pod's node affinity/selector", resolvable=False)
    used: Counter[str] = Counter()
    for other in others:
        used.update(resource_requests(other))
    allocatable = {k: parse_quantity(v) for k, v in node["status"]["allocatable"].items()}
    for name, amount in sorted(resource_requests(pod, ignored).items()):
        capacity = allocatable.get(name, Decimal(0))
        if amount > capacity - used[name]:
            message = "Too many pods" if name == "pods" else f"Insufficient {name}"
            return Rejection(message, resolvable=amount <= capacity)
    return None


def is_tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    """Return whether a taint is tolerated (Toleration.ToleratesTaint).

    Exists without a key tolerates all keys; no effect tolerates all effects.
    """
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and toleration.get("key") in (None, "", taint["key"])
        and (
            toleration.get("operator") == "Exists"
            or (toleration.get("key") and toleration.get("value", "") == taint.get("value", ""))
        )
        for toleration in tolerations
    )


def is_selected(pod: Json, node: Json) -> bool:
    """Return whether spec.nodeSelector and a required term match; an empty term never matches."""
    labels = node["metadata"].get("labels", {})
    if not pod["spec"].get("nodeSelector", {}).items() <= labels.items():
        return False
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_matches(requirement, labels) for requirement in term.get("matchExpressions", []))
        and all(_matches(requirement, fields) for requirement in term.get("matchFields", []))
        for term in required["nodeSelectorTerms"]
    )


def _matches(requirement: Json, values: dict[str, str]) -> bool:
    value = values.get(requirement["key"])
    operands = requirement.get("values", [])
    operators: dict[str, Callable[[], bool]] = {
        "In": lambda: value in operands,
        "NotIn": lambda: value not in operands,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and int(value) > int(operands[0]),
        "Lt": lambda: value is not None and int(value) < int(operands[0]),
    }
    return operators[requirement["operator"]]()
