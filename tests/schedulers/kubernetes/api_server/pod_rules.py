"""Defaulting and validation of pods, and of their updates.

Only for what a scheduler or a gate can get wrong; images, volumes and probes are not checked.

References
----------
KEP-3521 (scheduling gates), KEP-3838 (mutable fields of a gated pod),
pkg/registry/core/pod/strategy.go and ValidatePodUpdate in pkg/apis/core/validation/validation.go
of kubernetes/kubernetes 1.36.
"""

from __future__ import annotations

from typing import Any

from tests.schedulers.kubernetes.api_server.metadata_rules import QUALIFIED_NAME, label_causes
from tests.schedulers.kubernetes.api_server.statuses import (
    ApiError,
    Cause,
    Json,
    forbidden_field,
    invalid_field,
    required_field,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
ADDITIONS_ONLY = "only additions are allowed (no mutations or deletions)"
UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
# Added to every pod by the DefaultTolerationSeconds admission plugin.
DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def containers(spec: Json) -> list[Json]:
    return [*spec.get("containers", []), *spec.get("initContainers", [])]


def with_defaults(pod: Json, priority: int, now: str) -> Json:
    """Return a new pod after defaulting, admission and `PrepareForCreate`."""
    spec = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        **pod["spec"],
        "priority": priority,
    }
    tolerations = list(spec.get("tolerations", []))
    tolerations += [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in DEFAULT_TOLERATIONS
        if all(key != toleration.get("key") for toleration in tolerations)
    ]
    spec["tolerations"] = tolerations
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [_container_with_defaults(container) for container in spec[kind]]
    status: Json = {"phase": "Pending", "qosClass": _quality_of_service(spec)}
    if spec.get("schedulingGates"):
        # Set only at creation: it stays after the last gate is removed, until a scheduler acts.
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastTransitionTime": now,
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    return {**pod, "spec": spec, "status": status}


def _container_with_defaults(container: Json) -> Json:
    """Default requests to limits, and convert quantities to strings."""
    resources = {
        kind: {name: str(quantity) for name, quantity in amounts.items()}
        for kind, amounts in (container.get("resources") or {}).items()
        if kind in ("limits", "requests")
    }
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **container,
        "resources": {**(container.get("resources") or {}), **resources},
    }


def _quality_of_service(spec: Json) -> str:
    limits = [c["resources"].get("limits", {}) for c in containers(spec)]
    requests = [c["resources"].get("requests", {}) for c in containers(spec)]
    both = ("cpu", "memory")
    if all(
        resource in limit and limit[resource] == request[resource]
        for limit, request in zip(limits, requests, strict=True)
        for resource in both
    ):
        return "Guaranteed"
    return "Burstable" if any(r in amounts for amounts in requests for r in both) else "BestEffort"


def create_causes(pod: Json) -> list[Cause]:
    spec = pod["spec"]
    causes = spec_causes(spec)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        message = "cannot be set until all schedulingGates have been cleared"
        causes.append(forbidden_field("spec.nodeName", message))
    return causes


def spec_causes(spec: Json) -> list[Cause]:
    """Return the violations of any pod, new or updated."""
    causes = []
    if not spec.get("containers"):
        causes.append(required_field("spec.containers", ""))
    names = [gate["name"] for gate in spec.get("schedulingGates", [])]
    for index, name in enumerate(names):
        path = f"spec.schedulingGates[{index}]"
        if not QUALIFIED_NAME.fullmatch(name):
            causes.append(invalid_field(path, f"{name!r} is not a qualified name"))
        if name in names[:index]:
            causes.append(Cause(path, "FieldValueDuplicate", repr(name)))
    causes += label_causes("spec.nodeSelector", spec.get("nodeSelector") or {})
    for index, container in enumerate(spec.get("containers") or []):
        resources = container["resources"]
        for name, limit in resources.get("limits", {}).items():
            # Extended resources cannot be overcommitted: request and limit must be equal.
            if "/" in name and resources["requests"].get(name) != limit:
                path = f"spec.containers[{index}].resources.requests"
                causes.append(invalid_field(path, f"must be equal to {name} limit"))
        for name in resources.get("requests", {}):
            if "/" in name and name not in resources.get("limits", {}):
                path = f"spec.containers[{index}].resources.limits"
                causes.append(required_field(path, "Limit must be set for non overcommitable"))
    if _required(spec) is not None and not _terms(spec):
        causes.append(required_field(TERMS, "must have at least one node selector term"))
    for index, term in enumerate(_terms(spec)):
        causes += _term_causes(f"{TERMS}[{index}]", term)
    return causes


def _term_causes(path: str, term: Json) -> list[Cause]:
    causes = []
    for index, requirement in enumerate(term.get("matchExpressions") or []):
        where, values = f"{path}.matchExpressions[{index}]", requirement.get("values") or []
        match requirement.get("operator"):
            case "In" | "NotIn":
                if not values:
                    message = "must be specified when `operator` is 'In' or 'NotIn'"
                    causes.append(required_field(f"{where}.values", message))
            case "Exists" | "DoesNotExist":
                if values:
                    message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    causes.append(forbidden_field(f"{where}.values", message))
            case "Gt" | "Lt":
                if len(values) != 1:
                    message = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                    causes.append(required_field(f"{where}.values", message))
            case _:
                causes.append(invalid_field(f"{where}.operator", "not a valid selector operator"))
    for index, requirement in enumerate(term.get("matchFields") or []):
        where = f"{path}.matchFields[{index}]"
        if requirement.get("key") != "metadata.name":
            causes.append(invalid_field(f"{where}.key", "not a valid field selector key"))
        if requirement.get("operator") not in ("In", "NotIn"):
            causes.append(invalid_field(f"{where}.operator", "not a valid selector operator"))
        elif len(requirement.get("values") or []) != 1:
            message = (
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
            causes.append(required_field(f"{where}.values", message))
    return causes


def _required(spec: Json) -> Json | None:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity.get(REQUIRED)


def _terms(spec: Json) -> list[Json]:
    return (_required(spec) or {}).get("nodeSelectorTerms") or []


def update_causes(new_pod: Json, old_pod: Json) -> list[Cause]:
    """Validate an update (ValidatePodUpdate): gates can be removed, gated pods narrowed."""
    new, old = dict(new_pod["spec"]), old_pod["spec"]
    causes = spec_causes(new)
    for kind in ("containers", "initContainers"):
        if len(new.get(kind) or []) != len(old.get(kind) or []):
            message = "pod updates may not add or remove containers"
            return [*causes, forbidden_field(f"spec.{kind}", message)]
    causes += _toleration_causes(new, old) + _gate_causes(new, old)
    if old.get("schedulingGates"):
        causes += _node_selector_causes(new, old) + _affinity_causes(new, old)
        _restore(new, old, "nodeSelector")
        if _without_node_affinity(new) == _without_node_affinity(old):
            _restore(new, old, "affinity")
    for kind in ("containers", "initContainers"):
        if new.get(kind):
            new[kind] = [
                {**now, "image": before.get("image")}
                for now, before in zip(new[kind], old[kind], strict=True)
            ]
            old = {**old, kind: [{**c, "image": c.get("image")} for c in old[kind]]}
    for field in ("schedulingGates", "tolerations", "activeDeadlineSeconds"):
        _restore(new, old, field)
    if (
        old.get("terminationGracePeriodSeconds", 0) < 0
        and new["terminationGracePeriodSeconds"] == 1
    ):
        _restore(new, old, "terminationGracePeriodSeconds")
    if new != old:
        message = f"pod updates may not change fields other than {UPDATABLE}"
        causes.append(forbidden_field("spec", f"{message}\n{sorted(_changed_fields(new, old))}"))
    return causes


def _restore(new: Json, old: Json, field: str) -> None:
    new.pop(field, None)
    if field in old:
        new[field] = old[field]


def _changed_fields(new: Json, old: Json) -> set[str]:
    return {key for key in new.keys() | old.keys() if new.get(key) != old.get(key)}


def _gate_causes(new: Json, old: Json) -> list[Cause]:
    old_gates = [gate["name"] for gate in old.get("schedulingGates") or []]
    return [
        forbidden_field(
            "spec.schedulingGates",
            f"only deletion is allowed, but found new scheduling gate '{gate['name']}'",
        )
        for gate in new.get("schedulingGates") or []
        if gate["name"] not in old_gates
    ]


def _toleration_causes(new: Json, old: Json) -> list[Cause]:
    def same(toleration: Json) -> Any:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    remaining = [same(toleration) for toleration in new.get("tolerations") or []]
    if all(same(toleration) in remaining for toleration in old.get("tolerations") or []):
        return []
    message = "existing toleration can not be modified except its tolerationSeconds"
    return [forbidden_field("spec.tolerations", message)]


def _node_selector_causes(new: Json, old: Json) -> list[Cause]:
    selector = new.get("nodeSelector") or {}
    if (old.get("nodeSelector") or {}).items() <= selector.items():
        return []
    return [invalid_field("spec.nodeSelector", ADDITIONS_ONLY)]


def _affinity_causes(new: Json, old: Json) -> list[Cause]:
    """Check that existing terms only get longer; without terms, any may be added."""
    before, after = _terms(old), _terms(new)
    if not before:
        return []
    if len(after) != len(before):
        message = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid_field(TERMS, message)]
    return [
        invalid_field(f"{TERMS}[{index}]", ADDITIONS_ONLY)
        for index, (now, then) in enumerate(zip(after, before, strict=True))
        if not _has_only_additions(now, then)
    ]


def _has_only_additions(new: Json, old: Json) -> bool:
    """Return whether old requirements come first, unchanged; an empty term must stay empty."""
    kinds = ("matchExpressions", "matchFields")
    if not any(old.get(kind) for kind in kinds):
        return not any(new.get(kind) for kind in kinds)
    return all((new.get(k) or [])[: len(old.get(k) or [])] == (old.get(k) or []) for k in kinds)


def _without_node_affinity(spec: Json) -> Json:
    affinity = spec.get("affinity") or {}
    return {key: value for key, value in affinity.items() if key != "nodeAffinity"}


def grace_period_s(pod: Json, requested_s: int | None) -> int:
    """Return the grace period (CheckGracefulDelete): 0 for an unbound or finished pod."""
    if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
        return 0
    period_s = pod["spec"]["terminationGracePeriodSeconds"] if requested_s is None else requested_s
    return 1 if period_s < 0 else period_s


def bind(pod: Json, binding: Json, now: str) -> Json:
    """Bind a pod (setPodHostAndAnnotations of pkg/registry/core/pod/storage/storage.go).

    Raises
    ------
    ValueError
        The pod cannot be bound; the server reports a conflict.
    """
    name, spec = pod["metadata"]["name"], pod["spec"]
    if pod["metadata"].get("deletionTimestamp"):
        raise ValueError(f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise ValueError(f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise ValueError(f"pod {name} has non-empty .spec.schedulingGates")
    annotations = binding["metadata"].get("annotations") or {}
    metadata = {**pod["metadata"]}
    if annotations or metadata.get("annotations"):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
    status["conditions"] = [
        *(c for c in status.get("conditions") or [] if c["type"] != "PodScheduled"),
        {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": now,
        },
    ]
    return {
        **pod,
        "metadata": metadata,
        "spec": {**spec, "nodeName": binding["target"]["name"]},
        "status": status,
    }


def compute_priority(spec: Json, classes: list[Json]) -> int:
    """Return the priority of the pod's class (Priority admission); reject a different number."""
    name = spec.get("priorityClassName")
    if name is None:
        priority = next((c["value"] for c in classes if c.get("globalDefault")), 0)
    else:
        found = [c["value"] for c in classes if c["metadata"]["name"] == name]
        if not found:
            raise ApiError(403, f"no PriorityClass with name {name} was found")
        priority = found[0]
    if spec.get("priority") not in (None, priority):
        raise ApiError(
            403,
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec;"
            f" priority admission controller computed {priority} from the given PriorityClass name",
        )
    return int(priority)
