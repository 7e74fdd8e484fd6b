"""What the gate wants written: decided by one, done by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from presage.schedulers.kubernetes.gate.annotations import Plan
from presage.schedulers.kubernetes.kubernetes_names import PLAN
from presage.schedulers.kubernetes.snapshot import Json


class Annotate(NamedTuple):
    """Change annotations of a PodGroup, if it is still as it was; None takes one away."""

    group: Json
    annotations: Mapping[str, str | None]


class Release(NamedTuple):
    """Take the gate from a pod, in the write that says where it is to be: now it can be bound.

    ``node`` is "" of a pod that may be anywhere; ``devices`` as in its annotation.
    """

    pod: Json
    node: str
    devices: str
    bind_by_s: float


class Delete(NamedTuple):
    """Delete a pod, for its owner to create it anew: no gate can be put back."""

    pod: Json
    why: str


class Say(NamedTuple):
    """Tell whoever looks at a pod or a PodGroup, as an event."""

    about: Json
    reason: str
    message: str
    warns: bool = False


Write = Annotate | Release | Delete | Say
Version = tuple[str, str]  # uid and resourceVersion


def version_of(thing: Json) -> Version:
    """Of a pod or a PodGroup, as it is."""
    return thing["metadata"]["uid"], thing["metadata"]["resourceVersion"]


def takes_away(write: Write) -> bool:
    """Whether running pods may be lost by it: first it has to be known that it is so."""
    if isinstance(write, Annotate):
        plan = Plan.from_json(write.annotations.get(PLAN) or "")
        return plan is not None and plan.taken_back
    return isinstance(write, Delete)


def subject(write: Write) -> Json:
    """What a write is of."""
    if isinstance(write, Annotate):
        return write.group
    return write.about if isinstance(write, Say) else write.pod
