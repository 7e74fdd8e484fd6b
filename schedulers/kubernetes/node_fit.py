"""How many pods a node can take, for all that is not a matter of devices and their topology.

What kube-scheduler's filters NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit
would say, so that no plan names a node that it refuses. Its other filters (volumes, host ports,
affinity between pods, spreading) are not asked here: a plan that fails by one of them is rolled
back.

References
----------
https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal

from presage.schedulers.kubernetes.pods import Amounts, amount, requests
from presage.schedulers.kubernetes.snapshot import Json

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_FAR = 1_000_000  # pods on a node


def room_of(
    nodes: Mapping[str, Json], holders: Iterable[tuple[str, Json]]
) -> Mapping[str, Amounts]:
    """What is left of each node's resources.

    Parameters
    ----------
    holders : iterable of (node's name, pod)
        Pods that have, or are to have, something of a node.
    """
    left: dict[str, dict[str, Decimal]] = {
        name: {of: amount(text) for of, text in _allocatable(node).items()}
        for name, node in nodes.items()
    }
    for node, pod in holders:
        of_node = left.get(node)
        if of_node is not None:
            for name, much in requests(pod).items():
                of_node[name] = of_node.get(name, Decimal(0)) - much
    return left


def limits_of(
    pods: Sequence[Json], nodes: Mapping[str, Json], room: Mapping[str, Amounts]
) -> tuple[tuple[str, int], ...]:
    """How many of some pods, of which any may come first, each node can take; those that none can
    are left out.
    """
    asked: dict[str, Decimal] = {}
    for pod in pods:
        for name, much in requests(pod).items():
            asked[name] = max(asked.get(name, Decimal(0)), much)
    asked = {name: much for name, much in asked.items() if much > 0}
    alike = list({_constraints(pod): pod for pod in pods}.values())
    found = []
    for name, node in nodes.items():
        left = room[name]
        most = min(
            (int(left.get(of, Decimal(0)) // much) for of, much in asked.items()), default=_FAR
        )
        if most > 0 and all(accepts(node, pod) for pod in alike):
            found.append((name, most))
    return tuple(found)


def likeness(pods: Iterable[Json]) -> Hashable:
    """Equal for pods of which every node can take equally many."""
    return frozenset((frozenset(requests(pod).items()), _constraints(pod)) for pod in pods)


def accepts(node: Json, pod: Json) -> bool:
    """Whether a pod may be on a node, however much is left of it."""
    tolerations = pod["spec"].get("tolerations") or ()
    taints = [taint for taint in node["spec"].get("taints") or () if taint["effect"] in _FORBIDDING]
    if node["spec"].get("unschedulable"):
        taints.append(_UNSCHEDULABLE)
    return all(_tolerated(taint, tolerations) for taint in taints) and _selected(pod, node)


_FORBIDDING = ("NoSchedule", "NoExecute")


def _allocatable(node: Json) -> Json:
    return (node.get("status") or {}).get("allocatable") or {}


def _constraints(pod: Json) -> str:
    """Equal for pods that the same nodes accept."""
    spec = pod["spec"]
    return repr([spec.get(key) for key in ("nodeSelector", "affinity", "tolerations")])


def _tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    for toleration in tolerations:
        any_value = toleration.get("operator") == "Exists"
        if (
            toleration.get("effect") in (None, "", taint["effect"])
            and (toleration.get("key") or (any_value and taint["key"])) == taint["key"]
            and (any_value or toleration.get("value", "") == taint.get("value", ""))
        ):
            return True
    return False


def _selected(pod: Json, node: Json) -> bool:
    """By its nodeSelector, and by one of the terms of its required node affinity."""
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    spec = pod["spec"]
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    for term in required.get("nodeSelectorTerms") or ():
        asked = [(one, labels) for one in term.get("matchExpressions") or ()]
        asked += [(one, fields) for one in term.get("matchFields") or ()]
        if asked and all(_holds(one, values) for one, values in asked):  # no requirement: no node
            return True
    return False


def _holds(asked: Json, values: Mapping[str, str]) -> bool:
    value, among = values.get(asked["key"]), asked.get("values") or ()
    match asked["operator"]:
        case "In" | "NotIn" as operator:
            return bool((value in among) == (operator == "In"))
        case "Exists" | "DoesNotExist" as operator:
            return bool((value is not None) == (operator == "Exists"))
        case "Gt" | "Lt" as operator:
            try:
                here, bound = int(value or ""), int(next(iter(among), ""))
            except ValueError:
                return False
            return here > bound if operator == "Gt" else here < bound
    return False
