"""Requests and responses of a scheduler extender.

Pods and nodes are complete Kubernetes objects as JSON. ``extender_json.py`` has the wire format.

References
----------
kubernetes/kubernetes: staging/src/k8s.io/kube-scheduler/extender/v1/types.go
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from presage.schedulers.kubernetes.snapshot import Json

MAX_SCORE = 10  # kube-scheduler multiplies scores by 10 and by the extender's weight


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """Pod and candidate nodes (ExtenderArgs), the request of filter and of prioritize.

    Attributes
    ----------
    nodes : mapping of str to Json, or None
        By name, in the order of the request; None if only names were sent.
    by_name : bool
        Whether request and response have only names (``nodeCacheCapable: true``).
    """

    pod: Json
    nodes: Mapping[str, Json | None]
    by_name: bool


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Candidates that passed, and reasons for the others (ExtenderFilterResult).

    Attributes
    ----------
    nodes : sequence of str
        Candidates that passed.
    failed : mapping of str to str
        Reasons by node; preemption there could help.
    unresolvable : mapping of str to str
        Reasons by node; preemption would not help.
    error : str
        If not empty, the call has failed and the other fields are ignored.
    """

    nodes: Sequence[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostPriority:
    """Score of a node for a pod, from 0 to 10 (higher is better)."""

    host: str
    score: int

    def __post_init__(self) -> None:
        # A numpy integer would pass an isinstance check, and fail as JSON.
        if type(self.score) is not int or not 0 <= self.score <= MAX_SCORE:
            raise ValueError(
                f"node {self.host!r}: score={self.score!r}, must be an int from 0 to {MAX_SCORE}"
            )


@dataclass(frozen=True, slots=True)
class BindArgs:
    """Pod to bind, and its node (ExtenderBindingArgs)."""

    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to preempt on one node (Victims, MetaVictims).

    Attributes
    ----------
    pods : mapping of str to Json, or None
        By uid, in the order of the request; None if only uids were sent.
    pdb_violations : int
        Number of PodDisruptionBudgets that would be violated.
    """

    pods: Mapping[str, Json | None]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """Unschedulable pod, and its possible victims by node (ExtenderPreemptionArgs)."""

    pod: Json
    victims: Mapping[str, Victims]
