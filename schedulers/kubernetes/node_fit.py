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

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.kubernetes.pods import Amounts, amount, requests
from presage.schedulers.kubernetes.snapshot import Json

Limits = tuple[tuple[str, int, int], ...]  # how many pods a node can take, now and if empty

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_FAR = 1_000_000  # pods on a node
_MOST = 2**62  # thousandths: more than there is of anything


class NodeCapacity:
    """What is left of each node's resources.

    Parameters
    ----------
    holders : iterable of (node's name, pod)
        Pods that have, or are to have, something of a node.
    """

    def __init__(self, nodes: Mapping[str, Json], holders: Iterable[tuple[str, Json]]) -> None:
        self._nodes = nodes
        place = {name: number for number, name in enumerate(nodes)}
        left: dict[str, list[int]] = {}
        for name, node in nodes.items():
            for of, text in _allocatable(node).items():
                left.setdefault(of, [0] * len(nodes))[place[name]] = amount(text)
        whole = {of: list(each) for of, each in left.items()}
        for name, pod in holders:
            if name in place:
                for of, much in requests(pod).items():
                    if of in left:
                        left[of][place[name]] -= much
        self._all = {of: _array(each) for of, each in whole.items()}
        self._left = {of: _array(each) for of, each in left.items()}
        self._accepting: dict[str, NDArray[np.bool_]] = {}
        self._limits: dict[tuple[object, ...], Limits] = {}

    def limits(self, pods: Sequence[Json]) -> Limits:
        """How many of some pods, of which any may come first, each node can take.

        Nodes that could take none if they were empty are left out.
        """
        asked: dict[str, int] = {}
        for pod in pods:
            for of, much in requests(pod).items():
                asked[of] = max(asked.get(of, 0), much)
        alike = {_constraints(pod): pod for pod in pods}
        key = (*sorted(asked.items()), *sorted(alike))
        if key not in self._limits:
            self._limits[key] = self._of(asked, alike)
        return self._limits[key]

    def _of(self, asked: Amounts, alike: Mapping[str, Json]) -> Limits:
        now = np.full(len(self._nodes), _FAR)
        most = now
        none = np.zeros(len(self._nodes), np.int64)
        for of, much in asked.items():
            if much > 0:
                each = min(much, _MOST)
                now = np.minimum(now, self._left.get(of, none) // each)
                most = np.minimum(most, self._all.get(of, none) // each)
        for constraints, pod in alike.items():
            if constraints not in self._accepting:
                accepting = [accepts(node, pod) for node in self._nodes.values()]
                self._accepting[constraints] = np.array(accepting, bool)
            most = np.where(self._accepting[constraints], most, 0)
        counts = zip(self._nodes, np.maximum(now, 0).tolist(), most.tolist(), strict=True)
        return tuple((name, left, ever) for name, left, ever in counts if ever > 0)


def _array(amounts: Sequence[int]) -> NDArray[np.int64]:
    return np.array([max(-_MOST, min(_MOST, one)) for one in amounts], np.int64)


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
