"""Gangs of pods: the pods of a PodGroup, or a single gated pod without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256

from presage.errors import InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.job import Job
from presage.schedulers.kubernetes.gate.annotations import (
    Plan,
    Reservation,
    Rollbacks,
    parse_devices,
    parse_time,
)
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_DEADLINE,
    DEVICES,
    GATE,
    JOB_CLASS,
    JOB_FEATURES,
    PLAN,
    RESERVATION,
    ROLLBACKS,
)
from presage.schedulers.kubernetes.node_fit import NodeLimits
from presage.schedulers.kubernetes.pods import (
    MILLI,
    NamespacedName,
    annotation,
    bound_node,
    controller_of,
    has_succeeded,
    is_finished,
    is_terminating,
    is_waiting_for_plan,
    namespaced_name,
    pod_group_name,
    rank_key,
    resource_requests,
    scheduling_gates,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.client import job_features

SCHEDULE_TIMEOUT_S = 600.0  # default of a PodGroup's scheduleTimeoutSeconds


@dataclass(frozen=True)
class PodGang:
    """Pods that run together or not at all, in their current state.

    Attributes
    ----------
    group : dict or None
        Their PodGroup; None if the pod names none, or if it does not exist.
    pods : tuple of dict
        Existing pods, in the order of their ranks.
    """

    name: NamespacedName
    group: Json | None
    pods: tuple[Json, ...]

    @property
    def job_id(self) -> str:
        """Unique id of the gang."""
        namespace, name = self.name
        return f"{namespace}/{name}" if self.is_group else f"{namespace}/pod/{name}"

    @cached_property
    def is_group(self) -> bool:
        """Whether its pods name a PodGroup, which need not exist."""
        return self.group is not None or pod_group_name(self.pods[0]) is not None

    @cached_property
    def min_member(self) -> int:
        """Number of pods that must run at once (requirement A5); 1 without a group (A3)."""
        return int(self._spec.get("minMember") or 1)

    @cached_property
    def timeout_s(self) -> float:
        """Time from the plan until a quorum must be bound; otherwise the plan is rolled back."""
        spec_s = float(self._spec.get("scheduleTimeoutSeconds") or 0.0)
        return spec_s if spec_s > 0 else SCHEDULE_TIMEOUT_S

    @property
    def _spec(self) -> Json:
        """Spec of the PodGroup; empty if there is none."""
        return {} if self.group is None else self.group.get("spec") or {}

    @cached_property
    def gated_pods(self) -> tuple[Json, ...]:
        """Pods that only the gate of Presage holds back."""
        return tuple(pod for pod in self.pods if is_waiting_for_plan(pod))

    @cached_property
    def pods_to_release(self) -> tuple[Json, ...]:
        """Gated pods that are in the current plan."""
        plan = self.plan
        if plan is None or plan.is_rolled_back:
            return ()
        return tuple(pod for pod in self.gated_pods if pod["metadata"]["uid"] in plan.devices)

    @cached_property
    def released_pods(self) -> tuple[Json, ...]:
        """Pods without the gate, pending or running."""
        return tuple(
            pod
            for pod in self.pods
            if GATE not in scheduling_gates(pod)
            and not is_finished(pod)
            and not is_terminating(pod)
        )

    @cached_property
    def succeeded(self) -> frozenset[str]:
        """Uids of members that have succeeded, including deleted ones.

        Empty if enough pods for a quorum are gated and none runs: that is another run.
        """
        if (
            not self.released_pods
            and not self.pods_to_release
            and len(self.gated_pods) >= self.min_member
        ):
            return frozenset()
        uids = {
            pod["metadata"]["uid"]
            for pod in self.pods
            if has_succeeded(pod) and annotation(pod, BIND_DEADLINE)
        }
        return frozenset(uids.union(() if self.plan is None else self.plan.succeeded))

    @cached_property
    def is_done(self) -> bool:
        """Whether its plan has no pods left that gated pods could join."""
        if self.released_pods or self.pods_to_release:
            return False
        return not self.succeeded or (
            not self.gated_pods and len(self.succeeded) >= self.min_member
        )

    @cached_property
    def bound_count(self) -> int:
        """Number of members that are bound or have succeeded."""
        return len(self.succeeded) + sum(bool(bound_node(pod)) for pod in self.released_pods)

    @cached_property
    def missing_count(self) -> int:
        """Number of further pods to release for a quorum."""
        return max(0, self.min_member - len(self.succeeded) - len(self.released_pods))

    @cached_property
    def plan(self) -> Plan | None:
        """Plan in the annotations of its PodGroup."""
        return None if self.group is None else Plan.from_json(annotation(self.group, PLAN))

    @cached_property
    def reservation(self) -> Reservation | None:
        """Reservation in the annotations of its PodGroup."""
        if self.group is None:
            return None
        return Reservation.from_json(annotation(self.group, RESERVATION))

    @cached_property
    def rollbacks(self) -> Rollbacks:
        """Rollbacks in the annotations of its PodGroup."""
        return Rollbacks.from_json("" if self.group is None else annotation(self.group, ROLLBACKS))

    @cached_property
    def created_s(self) -> float:
        """Creation time of the PodGroup or pod, which is its submission time (requirement A2)."""
        obj = self.group if self.group is not None else self.pods[0]
        return parse_time(obj["metadata"]["creationTimestamp"])

    def blocking_reason(self, resource: str) -> str:
        """Return why its pods cannot be planned; "" if they can, or if none is gated."""
        if not self.gated_pods:
            return ""
        if self.is_group and self.group is None:
            namespace, name = self.name
            return f"PodGroup {name!r} does not exist in namespace {namespace!r}; create it"
        if len(self.gated_pods) < self.missing_count:
            return (
                f"fewer gated pods than minMember {self.min_member} requires; they are planned "
                f"once all exist with {GATE} as their only scheduling gate"
            )
        orphan = next((pod for pod in self.gated_pods if controller_of(pod) is None), None)
        if orphan is not None:
            return (
                f"pod {orphan['metadata']['name']!r} has no controller to recreate it after a "
                "rollback; create it by a Job, or another controller"
            )
        sizes = sorted({size for pod in self.gated_pods if (size := requested_gpus(pod, resource))})
        if len(sizes) > 1:
            return (
                f"its pods request {' and '.join(map(str, sizes))} devices; all pods of a gang "
                "must request the same number, or none: use one PodGroup for each number"
            )
        return ""

    def summary(self, blocking_reason: str) -> dict[str, object]:
        """Return the state of the gang, and why its pods are not planned, for display."""
        plan, reservation = self.plan, self.reservation
        if self.bound_count >= self.min_member:
            state = "bound"
        elif plan is not None:
            state = "rolling back" if plan.is_rolled_back else "planned"
        elif self.released_pods:
            state = "released"
        else:
            state = "pending" if reservation is None else "reserving"
        released = [annotation(pod, DEVICES) for pod in self.released_pods]
        reserved = [] if reservation is None else [reservation.devices]
        return {
            "gang": self.job_id,
            "state": state,
            "min_member": self.min_member,
            "waiting": len(self.gated_pods),
            "released": len(self.released_pods),
            "bound": self.bound_count,
            "devices": ",".join(reserved + [devices for devices in released if devices]),
            "rollbacks": self.rollbacks.count,
            "why": blocking_reason,
        }

    def make_job(self, resource: str, node_limits: NodeLimits) -> Job | None:
        """Return a job for the gated pods; None if none of them requests devices."""
        with_gpus = self.gated_pods_requesting(resource)
        if not with_gpus:
            return None
        first = with_gpus[0]
        size, without_gpus = requested_gpus(first, resource), len(self.gated_pods) - len(with_gpus)
        min_pods = min(max(1, self.missing_count - without_gpus), len(with_gpus))
        features = pod_features(first, self.group)
        return Job(
            self.job_id,
            max(0.0, self.created_s),
            gpus=len(with_gpus) * size,
            min_gpus=min_pods * size if min_pods < len(with_gpus) else 0,
            gpus_per_task=size,
            node_limits=node_limits,
            features=features,
            iterations=0 if features is None else features.job.iterations,
            latency_sensitive=_inherited(first, self.group, JOB_CLASS) == "latency-sensitive",
            priority=int(first["spec"].get("priority") or 0),
        )

    def gated_pods_requesting(self, resource: str) -> tuple[Json, ...]:
        """Return the gated pods that request devices."""
        return tuple(pod for pod in self.gated_pods if requested_gpus(pod, resource))


def group_pods(pods: Iterable[Json], groups: Mapping[NamespacedName, Json]) -> dict[str, PodGang]:
    """Return the gangs of all pods that are, or were, gated or in a group; by job id."""
    by_group: dict[NamespacedName, list[Json]] = {name: [] for name in groups}
    single: list[PodGang] = []
    for pod in pods:
        group = pod_group_name(pod)
        if group is not None:
            by_group.setdefault(group, []).append(pod)
        elif GATE in scheduling_gates(pod) or annotation(pod, BIND_DEADLINE):
            single.append(PodGang(namespaced_name(pod), None, (pod,)))
    grouped = [
        PodGang(name, groups.get(name), tuple(sorted(members, key=rank_key)))
        for name, members in by_group.items()
        if members or name in groups
    ]
    gangs = sorted((*grouped, *single), key=lambda gang: gang.job_id)
    return {gang.job_id: gang for gang in gangs}


def requested_gpus(pod: Json, resource: str) -> int:
    """Return the number of devices that a pod requests."""
    return resource_requests(pod).get(resource, 0) // MILLI


def planned_devices(pod: Json) -> list[tuple[str, int]]:
    """Return node and number of each planned device of a released pod.

    A copied pod has copied annotations: while it is gated, they do not count.
    """
    return [] if GATE in scheduling_gates(pod) else parse_devices(annotation(pod, DEVICES))


def pod_features(pod: Json, group: Json | None) -> JobFeatures | None:
    """Return the job features that a pod or its PodGroup declares; None if they are invalid."""
    return _parse_features(_inherited(pod, group, JOB_FEATURES))


def _inherited(pod: Json, group: Json | None, name: str) -> str:
    """Return the annotation of a pod, or else of its PodGroup."""
    return annotation(pod, name) or ("" if group is None else annotation(group, name))


@lru_cache(maxsize=4096)
def _parse_features(text: str) -> JobFeatures | None:
    if not text:
        return None
    try:
        features = job_features.from_json(text, source=f"annotation {JOB_FEATURES}")
    except InvalidJobError:
        return None
    # Job names are arbitrary: equal features, and only these, get the same id.
    digest = sha256(text.encode()).hexdigest()
    return replace(features, job=replace(features.job, job_id=digest))
