"""Selection of preemption victims, and of the node.

SelectVictimsOnNode and pickOneNodeForPreemption of kubernetes/kubernetes pkg/scheduler
(framework/plugins/defaultpreemption, framework/preemption), without disruption budgets.
"""

from __future__ import annotations

from tests.schedulers.kubernetes.api_server.statuses import Json
from tests.schedulers.kubernetes.kube_scheduler.node_fit import reject

Victims = dict[str, list[Json]]  # by node; the most important first


def select_victims(
    node: Json, pod: Json, others: list[Json], ignored: frozenset[str]
) -> list[Json]:
    """Return the victims to remove so that the pod fits; empty if that does not help.

    First all pods of lower priority are removed; then they are added back by importance, while the
    pod still fits.
    """
    lower = [other for other in others if _priority(other) < _priority(pod)]
    staying = [other for other in others if _priority(other) >= _priority(pod)]
    if not lower or reject(pod, node, staying, ignored) is not None:
        return []
    victims = []
    for other in sorted(lower, key=_importance):
        if reject(pod, node, [*staying, other], ignored) is None:
            staying.append(other)
        else:
            victims.append(other)
    return victims


def pick_node(candidates: Victims) -> str:
    """Return the node with the least important victims.

    Nodes are compared by highest victim priority, sum of priorities, number and start time.
    """
    return min(
        candidates,
        key=lambda node: (
            _priority(candidates[node][0]),
            sum(_priority(victim) for victim in candidates[node]),
            len(candidates[node]),
            _latest_first(candidates[node]),
            node,
        ),
    )


def _latest_first(victims: list[Json]) -> list[int]:
    """Sort key: start of the earliest of the most important victims, latest first."""
    highest = _priority(victims[0])
    start = min(_start(victim) for victim in victims if _priority(victim) == highest)
    return [-ord(letter) for letter in start]


def _importance(pod: Json) -> tuple[int, str, str]:
    return -_priority(pod), _start(pod), pod["metadata"]["name"]


def _priority(pod: Json) -> int:
    return int(pod["spec"]["priority"])


def _start(pod: Json) -> str:
    return str(pod["status"].get("startTime", pod["metadata"]["creationTimestamp"]))
