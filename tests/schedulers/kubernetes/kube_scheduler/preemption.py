"""Which pods of lower priority would have to go, and from which node.

SelectVictimsOnNode and pickOneNodeForPreemption of kubernetes/kubernetes pkg/scheduler
(framework/plugins/defaultpreemption, framework/preemption), without disruption budgets.
"""

from __future__ import annotations

from tests.schedulers.kubernetes.api_server.statuses import Json
from tests.schedulers.kubernetes.kube_scheduler.node_fit import unfit

Victims = dict[str, list[Json]]  # by node; the most important first


def victims_on(node: Json, pod: Json, others: list[Json], ignored: frozenset[str]) -> list[Json]:
    """The fewest important pods without which the pod fits; none where even that is no use.

    All of lower priority go first; then the most important comes back, and the next, while the
    pod still fits.
    """
    lower = [other for other in others if _priority(other) < _priority(pod)]
    staying = [other for other in others if _priority(other) >= _priority(pod)]
    if not lower or unfit(pod, node, staying, ignored) is not None:
        return []
    victims = []
    for other in sorted(lower, key=_importance):
        if unfit(pod, node, [*staying, other], ignored) is None:
            staying.append(other)
        else:
            victims.append(other)
    return victims


def best(candidates: Victims) -> str:
    """The node that loses least: lowest highest priority, lowest sum, fewest, latest started."""
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
    """Orders by when the earliest of the most important ones started, latest first."""
    highest = _priority(victims[0])
    start = min(_start(victim) for victim in victims if _priority(victim) == highest)
    return [-ord(letter) for letter in start]


def _importance(pod: Json) -> tuple[int, str, str]:
    return -_priority(pod), _start(pod), pod["metadata"]["name"]


def _priority(pod: Json) -> int:
    return int(pod["spec"]["priority"])


def _start(pod: Json) -> str:
    return str(pod["status"].get("startTime", pod["metadata"]["creationTimestamp"]))
