"""JSON encoding of the extender's requests and responses.

The Go structs have no JSON tags: kube-scheduler writes `Pod` and `NodeNames`. As in Go's decoder,
keys are case-insensitive, the last of several equal keys counts, unknown keys are ignored, and null
is the same as a missing key.

References
----------
kubernetes/kubernetes: staging/src/k8s.io/kube-scheduler/extender/v1/types.go and
pkg/scheduler/extender.go; https://pkg.go.dev/encoding/json#Unmarshal
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from presage.errors import InvalidRequestError, one_line
from presage.schedulers.kubernetes.extender.extender_types import (
    BindArgs,
    FilterArgs,
    FilterResult,
    HostPriority,
    PreemptArgs,
    Victims,
)
from presage.schedulers.kubernetes.snapshot import Json

_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an integer",
    float: "a float",
    bool: "a boolean",
}
_Value = TypeVar("_Value")


def parse_filter_args(body: bytes) -> FilterArgs:
    """Parse the request of filter and of prioritize.

    Raises
    ------
    InvalidRequestError
        A key is missing or has the wrong type; the same holds for the other parsers here.
    """
    request = _object(body, "ExtenderArgs")
    nodes, names = _get(request, "Nodes", dict), _get(request, "NodeNames", list)
    if (nodes is None) == (names is None):
        raise _invalid(
            "ExtenderArgs: send Nodes or NodeNames, not "
            f"{'neither' if names is None else 'both'} (NodeNames where nodeCacheCapable is true)"
        )
    pod = _require(request, "Pod", dict)
    _name(pod, "Pod", "name")
    if names is not None:
        for i, name in enumerate(names):
            _check(name, f"NodeNames[{i}]", str)
        return FilterArgs(pod, dict.fromkeys(names), by_name=True)
    items = _get(nodes or {}, "items", list, "Nodes.") or []
    return FilterArgs(pod, _index_by(items, "name", "Nodes.items"), by_name=False)


def filter_result(result: FilterResult, args: FilterArgs) -> Json:
    """Return an ExtenderFilterResult with names or complete nodes, like the request."""
    names = list(result.nodes)
    nodes = None if args.by_name else [args.nodes[name] for name in names]
    return {
        "Nodes": None if nodes is None else {"metadata": {}, "items": nodes},
        "NodeNames": names if args.by_name else None,
        "FailedNodes": dict(result.failed),
        "FailedAndUnresolvableNodes": dict(result.unresolvable),
        "Error": result.error,
    }


def host_priorities(scores: Iterable[HostPriority]) -> list[Json]:
    """Return a HostPriorityList."""
    return [{"Host": score.host, "Score": score.score} for score in scores]


def parse_bind_args(body: bytes) -> BindArgs:
    """Parse the request of bind."""
    request = _object(body, "ExtenderBindingArgs")
    return BindArgs(
        pod_name=_require(request, "PodName", str),
        pod_namespace=_require(request, "PodNamespace", str),
        pod_uid=_require(request, "PodUID", str),
        node=_require(request, "Node", str),
    )


def binding_result(error: str) -> Json:
    """Return an ExtenderBindingResult."""
    return {"Error": error}


def parse_preempt_args(body: bytes) -> PreemptArgs:
    """Parse the request of preempt."""
    request = _object(body, "ExtenderPreemptionArgs")
    full = _get(request, "NodeNameToVictims", dict)
    meta = _get(request, "NodeNameToMetaVictims", dict)
    if (full is None) == (meta is None):
        raise _invalid(
            "ExtenderPreemptionArgs: send NodeNameToVictims or NodeNameToMetaVictims, not "
            f"{'neither' if meta is None else 'both'} (the latter where nodeCacheCapable is true)"
        )
    pod = _require(request, "Pod", dict)
    _name(pod, "Pod", "name")
    key = "NodeNameToVictims" if meta is None else "NodeNameToMetaVictims"
    victims: dict[str, Victims] = {}
    for node, on_node in (full or meta or {}).items():
        where = f"{key}[{node!r}]"
        _check(on_node, where, dict)
        pods = _get(on_node, "Pods", list, f"{where}.") or []
        victims[node] = Victims(
            _index_by(pods, "uid", f"{where}.Pods")
            if meta is None
            else _uids(pods, f"{where}.Pods"),
            _get(on_node, "NumPDBViolations", int, f"{where}.") or 0,
        )
    return PreemptArgs(pod, victims)


def preemption_result(victims: Mapping[str, Victims]) -> Json:
    """Return an ExtenderPreemptionResult, which has only uids in both forms of the request."""
    return {
        "NodeNameToMetaVictims": {
            node: {
                "Pods": [{"UID": uid} for uid in on_node.pods],
                "NumPDBViolations": on_node.pdb_violations,
            }
            for node, on_node in victims.items()
        }
    }


def _object(body: bytes, type_name: str) -> Json:
    try:
        request = json.loads(body, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"the body is not valid JSON ({error}); send {type_name}") from None
    return _check(request, f"the body, {type_name},", dict)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _index_by(objects: list[Any], key: str, where: str) -> dict[str, Json | None]:
    """Return nodes by name, or pods by uid."""
    return {_name(obj, f"{where}[{i}]", key): obj for i, obj in enumerate(objects)}


def _name(obj: Any, where: str, key: str) -> str:
    """Return the name or uid of a pod or node, whose keys are case-sensitive."""
    metadata = _check(obj, where, dict).get("metadata")
    name = _check(metadata, f"{where}.metadata", dict).get(key)
    return _check(name, f"{where}.metadata.{key}", str)


def _uids(pods: list[Any], where: str) -> dict[str, Json | None]:
    """Return the uids of MetaPods."""
    checked = [_check(pod, f"{where}[{i}]", dict) for i, pod in enumerate(pods)]
    return {_require(pod, "UID", str, f"{where}[{i}]."): None for i, pod in enumerate(checked)}


def _get(obj: Json, key: str, kind: type[_Value], where: str = "") -> _Value | None:
    """Return the value of a case-insensitive key; None if it is null or missing."""
    value = None
    for name, candidate in obj.items():
        if name.lower() == key.lower():
            value = candidate
    return None if value is None else _check(value, where + key, kind)


def _require(obj: Json, key: str, kind: type[_Value], where: str = "") -> _Value:
    return _check(_get(obj, key, kind, where), where + key, kind)


def _check(value: Any, where: str, kind: type[_Value]) -> _Value:
    # Not isinstance, which would accept True as an int.
    if type(value) is not kind:
        problem = "is missing or null" if value is None else f"is {_KINDS[type(value)]}"
        raise _invalid(f"{where} {problem}; send {_KINDS[kind]}")
    return value


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(one_line(message))
