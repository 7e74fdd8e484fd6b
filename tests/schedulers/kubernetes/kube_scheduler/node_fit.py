"""Whether a pod may run on a node, by the rules of kube-scheduler's filter plugins.

NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit of
kubernetes/kubernetes pkg/scheduler/framework/plugins; the others are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import NamedTuple

from kubernetes.utils.quantity import parse_quantity

from tests.schedulers.kubernetes.api_server.statuses import Json

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
Amounts = dict[str, Decimal]


class Unfit(NamedTuple):
    """Why not; ``resolvable`` where it would help if other pods went away."""

    message: str
    resolvable: bool


def requested(pod: Json, ignored: frozenset[str] = frozenset()) -> Amounts:
    """What the pod needs of each resource: its containers together or its largest init one."""
    total: Amounts = {"pods": Decimal(1)}
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(amount)
    for container in pod["spec"].get("initContainers", []):
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            total[name] = max(total.get(name, Decimal(0)), parse_quantity(amount))
    return {name: amount for name, amount in total.items() if name not in ignored}


def unfit(
    pod: Json, node: Json, others: Iterable[Json], ignored: frozenset[str] = frozenset()
) -> Unfit | None:
    """None where the pod fits beside the ``others`` that are on the node.

    Parameters
    ----------
    ignored : frozenset of str
        Resources that an extender looks after alone (``ignoredByScheduler``).
    """
    spec, tolerations = node["spec"], pod["spec"].get("tolerations", [])
    if spec.get("unschedulable") and not tolerated(UNSCHEDULABLE, tolerations):
        return Unfit("node(s) were unschedulable", resolvable=False)
    for taint in spec.get("taints", []):
        if taint["effect"] != "PreferNoSchedule" and not tolerated(taint, tolerations):
            return Unfit("node(s) had untolerated taint(s)", resolvable=False)
    if not selected(pod, node):
        return Unfit("node(s) didn't match Pod's node affinity/selector", resolvable=False)
    used: Counter[str] = Counter()
    for other in others:
        used.update(requested(other))
    allocatable = {k: parse_quantity(v) for k, v in node["status"]["allocatable"].items()}
    for name, amount in sorted(requested(pod, ignored).items()):
        has = allocatable.get(name, Decimal(0))
        if amount > has - used[name]:
            said = "Too many pods" if name == "pods" else f"Insufficient {name}"
            return Unfit(said, resolvable=amount <= has)
    return None


def tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    """Toleration.ToleratesTaint: no key with Exists is all keys, no effect is all effects."""
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and toleration.get("key") in (None, "", taint["key"])
        and (
            toleration.get("operator") == "Exists"
            or (toleration.get("key") and toleration.get("value", "") == taint.get("value", ""))
        )
        for toleration in tolerations
    )


def selected(pod: Json, node: Json) -> bool:
    """By spec.nodeSelector and by one of the required terms; an empty term selects nothing."""
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
        and all(_holds(wanted, labels) for wanted in term.get("matchExpressions", []))
        and all(_holds(wanted, fields) for wanted in term.get("matchFields", []))
        for term in required["nodeSelectorTerms"]
    )


def _holds(wanted: Json, values: dict[str, str]) -> bool:
    value = values.get(wanted["key"])
    among = wanted.get("values", [])
    operators: dict[str, Callable[[], bool]] = {
        "In": lambda: value in among,
        "NotIn": lambda: value not in among,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and int(value) > int(among[0]),
        "Lt": lambda: value is not None and int(value) < int(among[0]),
    }
    return operators[wanted["operator"]]()
