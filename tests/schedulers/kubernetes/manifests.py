"""Minimal manifests of nodes, pods and pod groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.schedulers.kubernetes.api_server.statuses import Json

POD_GROUP_GROUP = "scheduling.x-k8s.io"
# As sigs.k8s.io/scheduler-plugins defines it, without its schema.
POD_GROUP_DEFINITION: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"podgroups.{POD_GROUP_GROUP}"},
    "spec": {
        "group": POD_GROUP_GROUP,
        "names": {
            "plural": "podgroups",
            "singular": "podgroup",
            "kind": "PodGroup",
            "shortNames": ["pg"],
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def node(
    name: str,
    *,
    gpus: int = 8,
    cpus: int = 64,
    memory: str = "512Gi",
    labels: dict[str, str] | None = None,
    taints: Iterable[Json] = (),
    unschedulable: bool = False,
) -> Json:
    resources = {"cpu": str(cpus), "memory": memory, "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": list(taints), **({"unschedulable": True} if unschedulable else {})},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(
    name: str,
    *,
    namespace: str = "default",
    gpus: int = 0,
    cpus: str = "1",
    memory: str = "1Gi",
    gates: Iterable[str] = (),
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod with one container; ``spec`` has keys of PodSpec, such as nodeSelector."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": cpus, "memory": memory}, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "containers": [{"name": "train", "image": "train:1", "resources": resources}],
            "schedulingGates": [{"name": gate} for gate in gates],
            **spec,
        },
    }


def pod_group(name: str, min_member: int, *, namespace: str = "default", **spec: Any) -> Json:
    return {
        "apiVersion": f"{POD_GROUP_GROUP}/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": min_member, **spec},
    }


def node_affinity(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return {"nodeAffinity": required}
