"""What kube-scheduler asks an extender, and what it is answered.

Pods and nodes are as Kubernetes spells them in JSON, with nothing taken out of them. See
`extender_json.py` for how all of this is written.

References
----------
kubernetes/kubernetes: staging/src/k8s.io/kube-scheduler/extender/v1/types.go
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from presage.schedulers.kubernetes.snapshot import Json

MAX_SCORE = 10  # kube-scheduler multiplies it by 10, and by the extender's weight


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """A pod and its candidates (ExtenderArgs); filter and prioritize are asked with the same.

    Attributes
    ----------
    nodes : mapping of str to Json, or None
        By name, in the order given; None where only names were sent.
    by_name : bool
        Whether only names were sent (``nodeCacheCapable: true``), and are to be answered.
    """

    pod: Json
    nodes: Mapping[str, Json | None]
    by_name: bool


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Which candidates are left (ExtenderFilterResult), and why each of the others is not.

    Attributes
    ----------
    nodes : sequence of str
        Those left, of the candidates.
    failed : mapping of str to str
        By node, why not; preempting pods there could help.
    unresolvable : mapping of str to str
        By node, why not; preempting would change nothing.
    error : str
        Where it is not empty the call has failed, and all else here is ignored.
    """

    nodes: Sequence[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostPriority:
    """How good a node is for a pod, from 0 to 10."""

    host: str
    score: int

    def __post_init__(self) -> None:
        # A numpy integer would pass for one here, and fail where the answer is written.
        if type(self.score) is not int or not 0 <= self.score <= MAX_SCORE:
            raise ValueError(
                f"node {self.host!r}: score={self.score!r}, must be an int from 0 to {MAX_SCORE}"
            )


@dataclass(frozen=True, slots=True)
class BindArgs:
    """A pod to bind to a node (ExtenderBindingArgs)."""

    pod_name: str
    pod_namespace: str
    pod_uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods on one node to be preempted (Victims, MetaVictims).

    Attributes
    ----------
    pods : mapping of str to Json, or None
        By uid, in the order given; None where only uids were sent.
    pdb_violations : int
        How many PodDisruptionBudgets' bounds would be broken.
    """

    pods: Mapping[str, Json | None]
    pdb_violations: int = 0


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """A pod that fits nowhere, and by node who would have to go for it (ExtenderPreemptionArgs)."""

    pod: Json
    victims: Mapping[str, Victims]
