"""Writes that the gate decides on and :mod:`presage.schedulers.kubernetes.gate.writer` performs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from presage.schedulers.kubernetes.gate.annotations import Plan
from presage.schedulers.kubernetes.kubernetes_names import PLAN
from presage.schedulers.kubernetes.snapshot import Json


class Annotate(NamedTuple):
    """Change of a PodGroup's annotations, if it has not changed since; None removes one."""

    group: Json
    annotations: Mapping[str, str | None]


class Release(NamedTuple):
    """Removal of a pod's scheduling gate, in the same write as its node affinity.

    ``node`` is "" for a pod that may run on any node; ``devices`` is the text of its annotation.
    """

    pod: Json
    node: str
    devices: str
    bind_deadline_s: float


class Delete(NamedTuple):
    """Deletion of a pod, which its controller recreates: a gate cannot be added back."""

    pod: Json
    message: str


class EmitEvent(NamedTuple):
    """Kubernetes event about a pod or a PodGroup."""

    regarding: Json
    reason: str
    message: str
    is_warning: bool = False


Write = Annotate | Release | Delete | EmitEvent
ObjectVersion = tuple[str, str]  # uid and resourceVersion


def object_version(obj: Json) -> ObjectVersion:
    """Return the version of a pod or a PodGroup."""
    return obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]


def is_destructive(write: Write) -> bool:
    """Return whether a write may delete running pods, so that its reason must be verified first."""
    if isinstance(write, Annotate):
        plan = Plan.from_json(write.annotations.get(PLAN) or "")
        return plan is not None and plan.is_rolled_back
    return isinstance(write, Delete)


def involved_object(write: Write) -> Json:
    """Return the pod or PodGroup that a write changes or reports on."""
    if isinstance(write, Annotate):
        return write.group
    return write.regarding if isinstance(write, EmitEvent) else write.pod
