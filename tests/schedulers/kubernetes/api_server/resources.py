"""Resource types of the fake API server, and the parsing of paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.schedulers.kubernetes.api_server.statuses import ApiError, Json


@dataclass(frozen=True)
class Resource:
    """Resource type and its registry strategy."""

    group: str  # "" for the core group
    version: str
    plural: str
    kind: str
    namespaced: bool = False
    has_status: bool = False  # has a /status subresource: status changes only through it
    has_generation: bool = False  # counts changes of the desired state
    custom: bool = False
    create_on_update: bool = False
    unconditional_update: bool = True  # a PUT may omit metadata.resourceVersion

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Name in errors: podgroups.scheduling.x-k8s.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


NODES = Resource("", "v1", "nodes", "Node", has_status=True)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True, has_status=True, has_generation=True)
EVENTS = Resource("", "v1", "events", "Event", namespaced=True, create_on_update=True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", has_status=True)
LEASES = Resource(
    "coordination.k8s.io", "v1", "leases", "Lease",
    namespaced=True, create_on_update=True, unconditional_update=False,
)  # fmt: skip
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
    has_status=True, has_generation=True, unconditional_update=False,
)  # fmt: skip
BUILT_IN = (NODES, PODS, EVENTS, NAMESPACES, LEASES, PRIORITY_CLASSES, DEFINITIONS)

SUBRESOURCES = ("status", "binding", "eviction")


def defined_resources(definition: Json) -> list[Resource]:
    """Return the resource of each served version of a CustomResourceDefinition."""
    spec = definition["spec"]
    return [
        Resource(
            spec["group"],
            version["name"],
            spec["names"]["plural"],
            spec["names"]["kind"],
            namespaced=spec["scope"] == "Namespaced",
            has_status="status" in version.get("subresources", {}),
            has_generation=True,
            custom=True,
            unconditional_update=False,
        )
        for version in spec["versions"]
        if version["served"]
    ]


class Route(NamedTuple):
    """Parsed path; ``namespace`` is empty for all namespaces and for cluster-scoped resources."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str  # empty: the collection
    subresource: str


def parse_path(path: str) -> Route:
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group, version, parts = "", "v1", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 3:
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        parts = []
    namespace = ""
    if parts[:1] == ["namespaces"] and len(parts) > 2 and parts[2] not in SUBRESOURCES:
        namespace, parts = parts[1], parts[2:]
    if not 1 <= len(parts) <= 3:
        raise ApiError(404, "the server could not find the requested resource")
    name, subresource = [*parts[1:], "", ""][:2]
    return Route(group, version, parts[0], namespace, name, subresource)
