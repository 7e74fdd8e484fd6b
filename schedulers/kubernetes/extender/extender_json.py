"""The extender's types as JSON.

Go's structs of them have no JSON tags: kube-scheduler writes `Pod` and `NodeNames`, and as Go's
decoder does, keys are read here in any case. Of keys alike but for case the last counts, those
nobody knows are ignored, and null is as good as a key left out.

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
    str: "text",
    int: "a whole number",
    float: "a fraction",
    bool: "true or false",
}
_Value = TypeVar("_Value")


def read_filter_args(body: bytes) -> FilterArgs:
    """What filter and prioritize are asked with.

    Raises
    ------
    InvalidRequestError
        Names the key that is not as ExtenderArgs has it; so do the others here.
    """
    given = _object(body, "ExtenderArgs")
    whole, names = _get(given, "Nodes", dict), _get(given, "NodeNames", list)
    if (whole is None) == (names is None):
        raise _wrong(
            "ExtenderArgs: send Nodes or NodeNames, not "
            f"{'neither' if names is None else 'both'} (NodeNames where nodeCacheCapable is true)"
        )
    pod = _need(given, "Pod", dict)
    _name(pod, "Pod", "name")
    if names is not None:
        for i, name in enumerate(names):
            _check(name, f"NodeNames[{i}]", str)
        return FilterArgs(pod, dict.fromkeys(names), by_name=True)
    items = _get(whole or {}, "items", list, "Nodes.") or []
    return FilterArgs(pod, _by(items, "name", "Nodes.items"), by_name=False)


def filter_result(result: FilterResult, asked: FilterArgs) -> Json:
    """ExtenderFilterResult, in the form that was asked in: names, or whole nodes."""
    names = list(result.nodes)
    whole = None if asked.by_name else [asked.nodes[name] for name in names]
    return {
        "Nodes": None if whole is None else {"metadata": {}, "items": whole},
        "NodeNames": names if asked.by_name else None,
        "FailedNodes": dict(result.failed),
        "FailedAndUnresolvableNodes": dict(result.unresolvable),
        "Error": result.error,
    }


def host_priorities(scores: Iterable[HostPriority]) -> list[Json]:
    """HostPriorityList."""
    return [{"Host": one.host, "Score": one.score} for one in scores]


def read_bind_args(body: bytes) -> BindArgs:
    """What bind is asked with."""
    given = _object(body, "ExtenderBindingArgs")
    return BindArgs(
        pod_name=_need(given, "PodName", str),
        pod_namespace=_need(given, "PodNamespace", str),
        pod_uid=_need(given, "PodUID", str),
        node=_need(given, "Node", str),
    )


def binding_result(error: str) -> Json:
    """ExtenderBindingResult."""
    return {"Error": error}


def read_preempt_args(body: bytes) -> PreemptArgs:
    """What preempt is asked with."""
    given = _object(body, "ExtenderPreemptionArgs")
    whole = _get(given, "NodeNameToVictims", dict)
    meta = _get(given, "NodeNameToMetaVictims", dict)
    if (whole is None) == (meta is None):
        raise _wrong(
            "ExtenderPreemptionArgs: send NodeNameToVictims or NodeNameToMetaVictims, not "
            f"{'neither' if meta is None else 'both'} (the latter where nodeCacheCapable is true)"
        )
    pod = _need(given, "Pod", dict)
    _name(pod, "Pod", "name")
    key = "NodeNameToVictims" if meta is None else "NodeNameToMetaVictims"
    victims: dict[str, Victims] = {}
    for node, on_node in (whole or meta or {}).items():
        where = f"{key}[{node!r}]"
        _check(on_node, where, dict)
        pods = _get(on_node, "Pods", list, f"{where}.") or []
        victims[node] = Victims(
            _by(pods, "uid", f"{where}.Pods") if meta is None else _uids(pods, f"{where}.Pods"),
            _get(on_node, "NumPDBViolations", int, f"{where}.") or 0,
        )
    return PreemptArgs(pod, victims)


def preemption_result(victims: Mapping[str, Victims]) -> Json:
    """ExtenderPreemptionResult, which has uids alone, whichever form was asked in."""
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
        given = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"the body is no JSON ({error}); send {type_name}") from None
    return _check(given, f"the body, {type_name},", dict)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _by(objects: list[Any], key: str, where: str) -> dict[str, Json | None]:
    """Nodes by name or pods by uid."""
    return {_name(one, f"{where}[{i}]", key): one for i, one in enumerate(objects)}


def _name(given: Any, where: str, key: str) -> str:
    """Of a pod or node its name or uid, in Kubernetes' own spelling."""
    metadata = _check(given, where, dict).get("metadata")
    name = _check(metadata, f"{where}.metadata", dict).get(key)
    return _check(name, f"{where}.metadata.{key}", str)


def _uids(pods: list[Any], where: str) -> dict[str, Json | None]:
    """Of MetaPods."""
    checked = [_check(pod, f"{where}[{i}]", dict) for i, pod in enumerate(pods)]
    return {_need(pod, "UID", str, f"{where}[{i}]."): None for i, pod in enumerate(checked)}


def _get(given: Json, key: str, kind: type[_Value], where: str = "") -> _Value | None:
    """A key's value, whatever the key's case; None where it is null or not there."""
    value = None
    for found, here in given.items():
        if found.lower() == key.lower():
            value = here
    return None if value is None else _check(value, where + key, kind)


def _need(given: Json, key: str, kind: type[_Value], where: str = "") -> _Value:
    return _check(_get(given, key, kind, where), where + key, kind)


def _check(value: Any, where: str, kind: type[_Value]) -> _Value:
    # Not isinstance: True is no whole number here.
    if type(value) is not kind:
        found = "is missing or null" if value is None else f"is {_KINDS[type(value)]}"
        raise _wrong(f"{where} {found}; send {_KINDS[kind]}")
    return value


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(one_line(message))
