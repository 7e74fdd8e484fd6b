"""Node fit: how many pods a node can take, apart from devices and their topology.

Applies kube-scheduler's filters NodeUnschedulable, TaintToleration, NodeAffinity and
NodeResourcesFit, so that no plan names a node that they reject. Its other filters (volumes, host
ports, pod affinity, spread constraints) are not applied: a plan that fails by one of them is rolled
back.

References
----------
https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.kubernetes.pods import ResourceList, parse_milli, resource_requests
from presage.schedulers.kubernetes.snapshot import Json

# Node name, pods that fit now, pods that fit if the node is empty.
NodeLimits = tuple[tuple[str, int, int], ...]

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_MAX_PODS = 1_000_000  # on a node
_MAX_QUANTITY = 2**62  # thousandths: more than any node has


class NodeCapacity:
    """Free and total resources of each node.

    Parameters
    ----------
    placed_pods : iterable of (node name, pod)
        Pods that are bound to a node, or planned for it.
    """

    def __init__(self, nodes: Mapping[str, Json], placed_pods: Iterable[tuple[str, Json]]) -> None:
        self._nodes = nodes
        node_index = {name: index for index, name in enumerate(nodes)}
        free: dict[str, list[int]] = {}
        for name, node in nodes.items():
            for resource, text in _allocatable(node).items():
                free.setdefault(resource, [0] * len(nodes))[node_index[name]] = parse_milli(text)
        total = {resource: list(quantities) for resource, quantities in free.items()}
        for name, pod in placed_pods:
            if name in node_index:
                for resource, quantity in resource_requests(pod).items():
                    if resource in free:
                        free[resource][node_index[name]] -= quantity
        self._total = {resource: _array(quantities) for resource, quantities in total.items()}
        self._free = {resource: _array(quantities) for resource, quantities in free.items()}
        self._accepting: dict[str, NDArray[np.bool_]] = {}  # by constraints
        self._limits: dict[tuple[object, ...], NodeLimits] = {}

    def limits(self, pods: Sequence[Json]) -> NodeLimits:
        """Return how many of some pods each node can take, whichever come first.

        Nodes that could take none even if they were empty are left out.
        """
        requests: dict[str, int] = {}
        for pod in pods:
            for resource, quantity in resource_requests(pod).items():
                requests[resource] = max(requests.get(resource, 0), quantity)
        by_constraints = {_constraints(pod): pod for pod in pods}
        key = (*sorted(requests.items()), *sorted(by_constraints))
        if key not in self._limits:
            self._limits[key] = self._compute_limits(requests, by_constraints)
        return self._limits[key]

    def _compute_limits(
        self, requests: ResourceList, by_constraints: Mapping[str, Json]
    ) -> NodeLimits:
        now = np.full(len(self._nodes), _MAX_PODS)
        empty = now
        none = np.zeros(len(self._nodes), np.int64)
        for resource, quantity in requests.items():
            if quantity > 0:
                divisor = min(quantity, _MAX_QUANTITY)
                now = np.minimum(now, self._free.get(resource, none) // divisor)
                empty = np.minimum(empty, self._total.get(resource, none) // divisor)
        for constraints, pod in by_constraints.items():
            if constraints not in self._accepting:
                accepting = [node_accepts(node, pod) for node in self._nodes.values()]
                self._accepting[constraints] = np.array(accepting, bool)
            empty = np.where(self._accepting[constraints], empty, 0)
        counts = zip(self._nodes, np.maximum(now, 0).tolist(), empty.tolist(), strict=True)
        return tuple(
            (name, fit_now, fit_empty) for name, fit_now, fit_empty in counts if fit_empty > 0
        )


def _array(quantities: Sequence[int]) -> NDArray[np.int64]:
    clipped = [max(-_MAX_QUANTITY, min(_MAX_QUANTITY, quantity)) for quantity in quantities]
    return np.array(clipped, np.int64)


def node_accepts(node: Json, pod: Json) -> bool:
    """Return whether a pod may run on a node, regardless of its free resources."""
    tolerations = pod["spec"].get("tolerations") or ()
    taints = [
        taint for taint in node["spec"].get("taints") or () if taint["effect"] in _HARD_EFFECTS
    ]
    if node["spec"].get("unschedulable"):
        taints.append(_UNSCHEDULABLE)
    return all(_is_tolerated(taint, tolerations) for taint in taints) and _is_selected(pod, node)


_HARD_EFFECTS = ("NoSchedule", "NoExecute")


def _allocatable(node: Json) -> Json:
    return (node.get("status") or {}).get("allocatable") or {}


def _constraints(pod: Json) -> str:
    """Return a key that is equal for pods that the same nodes accept."""
    spec = pod["spec"]
    return repr([spec.get(key) for key in ("nodeSelector", "affinity", "tolerations")])


def _is_tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    for toleration in tolerations:
        any_value = toleration.get("operator") == "Exists"
        if (
            toleration.get("effect") in (None, "", taint["effect"])
            and (toleration.get("key") or (any_value and taint["key"])) == taint["key"]
            and (any_value or toleration.get("value", "") == taint.get("value", ""))
        ):
            return True
    return False


def _is_selected(pod: Json, node: Json) -> bool:
    """Return whether nodeSelector and a term of the required node affinity match a node."""
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
        requirements = [(one, labels) for one in term.get("matchExpressions") or ()]
        requirements += [(one, fields) for one in term.get("matchFields") or ()]
        # A term without requirements matches no node.
        if requirements and all(_matches(one, values) for one, values in requirements):
            return True
    return False


def _matches(requirement: Json, values: Mapping[str, str]) -> bool:
    value, operands = values.get(requirement["key"]), requirement.get("values") or ()
    match requirement["operator"]:
        case "In" | "NotIn" as operator:
            return bool((value in operands) == (operator == "In"))
        case "Exists" | "DoesNotExist" as operator:
            return bool((value is not None) == (operator == "Exists"))
        case "Gt" | "Lt" as operator:
            try:
                actual, bound = int(value or ""), int(next(iter(operands), ""))
            except ValueError:
                return False
            return actual > bound if operator == "Gt" else actual < bound
    return False
