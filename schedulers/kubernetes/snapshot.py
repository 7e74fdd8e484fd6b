"""Snapshot of the cached objects of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nodes, pods and pod groups as JSON of the API server, without ``metadata.managedFields``.

    Each kind is consistent with itself; kinds may differ slightly in time. Snapshots share the
    mappings and their objects: do not change them.

    Attributes
    ----------
    version : int
        Version of this process's cache; grows with every change.
    nodes : mapping
        By name.
    pods, pod_groups : mapping
        By namespace and name. Finished pods are included until they are deleted.
    """

    version: int
    nodes: Mapping[str, Json]
    pods: Mapping[tuple[str, str], Json]
    pod_groups: Mapping[tuple[str, str], Json]
