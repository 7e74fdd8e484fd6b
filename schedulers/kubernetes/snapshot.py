"""What is known of a cluster at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects as the API server spells them, without ``metadata.managedFields``.

    Each kind is as it was at one moment; one kind may be told of sooner than another. Neither the
    mappings nor the objects in them may be changed: who asked before shares them.

    Attributes
    ----------
    version : int
        Of this process; grows with every change.
    nodes : mapping
        By name.
    pods, pod_groups : mapping
        By namespace and name; pods that ended are among them until somebody deletes them.
    """

    version: int
    nodes: Mapping[str, Json]
    pods: Mapping[tuple[str, str], Json]
    pod_groups: Mapping[tuple[str, str], Json]
