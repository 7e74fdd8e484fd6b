"""Gangs of pods: those of a PodGroup, and each gated pod of none as one of its own."""

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
    RolledBack,
    devices_named,
    seconds,
)
from presage.schedulers.kubernetes.kubernetes_names import (
    BIND_BY,
    CLASS,
    DEVICES,
    GATE,
    JOB,
    PLAN,
    RESERVED,
    ROLLED_BACK,
)
from presage.schedulers.kubernetes.node_fit import Limits
from presage.schedulers.kubernetes.pods import (
    MILLI,
    Name,
    annotation,
    bound_to,
    gates,
    group_of,
    has_succeeded,
    is_going,
    is_over,
    name_of,
    owner_of,
    rank,
    requests,
    waits,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.serving.client import job_features

SCHEDULE_TIMEOUT_S = 600.0  # of a PodGroup that names none, or none above 0


@dataclass(frozen=True)
class PodGang:
    """Pods that run together or not at all, as they are now.

    Attributes
    ----------
    group : dict or None
        Their PodGroup; None of a pod that names none, and where the one that is named is not there.
    pods : tuple of dict
        All that are there, in the order of their ranks.
    """

    name: Name
    group: Json | None
    pods: tuple[Json, ...]

    @property
    def job_id(self) -> str:
        """Unlike that of any other gang."""
        namespace, name = self.name
        return f"{namespace}/{name}" if self.is_group else f"{namespace}/pod/{name}"

    @cached_property
    def is_group(self) -> bool:
        """Whether its pods name a PodGroup, be it there or not."""
        return self.group is not None or group_of(self.pods[0]) is not None

    @cached_property
    def min_member(self) -> int:
        """How many have to run at once (requirement A5); 1 of a pod of no group (A3)."""
        return int(self._spec.get("minMember") or 1)

    @cached_property
    def timeout_s(self) -> float:
        """From a plan to the time when a quorum is bound, else the plan is taken back."""
        named_s = float(self._spec.get("scheduleTimeoutSeconds") or 0.0)
        return named_s if named_s > 0 else SCHEDULE_TIMEOUT_S

    @property
    def _spec(self) -> Json:
        """Of its PodGroup, which need not have any."""
        return {} if self.group is None else self.group.get("spec") or {}

    @cached_property
    def waiting(self) -> tuple[Json, ...]:
        """Pods that wait for a plan."""
        return tuple(pod for pod in self.pods if waits(pod))

    @cached_property
    def to_release(self) -> tuple[Json, ...]:
        """Those that wait no longer for a plan, but for being released."""
        plan = self.plan
        if plan is None or plan.taken_back:
            return ()
        return tuple(pod for pod in self.waiting if pod["metadata"]["uid"] in plan.devices)

    @cached_property
    def released(self) -> tuple[Json, ...]:
        """Pods that kube-scheduler has, or had, to bind, and that live."""
        return tuple(
            pod
            for pod in self.pods
            if GATE not in gates(pod) and not is_over(pod) and not is_going(pod)
        )

    @cached_property
    def succeeded(self) -> frozenset[str]:
        """Uids of members that have done what they had to, also if they are gone.

        None, if as many wait as are needed and nobody runs: that is another run.
        """
        if not self.released and not self.to_release and len(self.waiting) >= self.min_member:
            return frozenset()
        there = {
            pod["metadata"]["uid"]
            for pod in self.pods
            if has_succeeded(pod) and annotation(pod, BIND_BY)
        }
        return frozenset(there.union(() if self.plan is None else self.plan.succeeded))

    @cached_property
    def is_done(self) -> bool:
        """Whether nobody of its plan is left for those that wait to join."""
        if self.released or self.to_release:
            return False
        return not self.succeeded or (not self.waiting and len(self.succeeded) >= self.min_member)

    @cached_property
    def bound(self) -> int:
        """How many run, or have done what they had to."""
        return len(self.succeeded) + sum(bool(bound_to(pod)) for pod in self.released)

    @cached_property
    def missing(self) -> int:
        """How many more have to be released for a quorum."""
        return max(0, self.min_member - len(self.succeeded) - len(self.released))

    @cached_property
    def plan(self) -> Plan | None:
        """Of its PodGroup, once it was started."""
        return None if self.group is None else Plan.from_json(annotation(self.group, PLAN))

    @cached_property
    def reservation(self) -> Reservation | None:
        """What it keeps until it has enough."""
        if self.group is None:
            return None
        return Reservation.from_json(annotation(self.group, RESERVED))

    @cached_property
    def rolled_back(self) -> RolledBack:
        """How often it came to nothing."""
        return RolledBack.from_json(
            "" if self.group is None else annotation(self.group, ROLLED_BACK)
        )

    @cached_property
    def created_s(self) -> float:
        """Since when it waits (requirement A2)."""
        of = self.group if self.group is not None else self.pods[0]
        return seconds(of["metadata"]["creationTimestamp"])

    def why_not(self, resource: str) -> str:
        """Why its pods cannot be planned as they are; "" if they can, or if none waits."""
        if not self.waiting:
            return ""
        if self.is_group and self.group is None:
            namespace, name = self.name
            return f"there is no PodGroup {name!r} in namespace {namespace!r}; create it"
        if len(self.waiting) < self.missing:
            return (
                f"fewer pods wait than minMember {self.min_member} needs; they are planned once "
                f"all are there, each gated by {GATE} alone"
            )
        orphan = next((pod for pod in self.waiting if owner_of(pod) is None), None)
        if orphan is not None:
            return (
                f"nobody would create pod {orphan['metadata']['name']!r} anew if its gang came to "
                "nothing; create it by a Job, or another controller"
            )
        sizes = sorted({size for pod in self.waiting if (size := gpus_of(pod, resource))})
        if len(sizes) > 1:
            return (
                f"its pods ask for {' and '.join(map(str, sizes))} devices; a gang's pods ask for "
                "equally many, or for none: make two PodGroups of it"
            )
        return ""

    def summary(self, why_not: str) -> dict[str, object]:
        """How it stands, for people and programs; and why its pods are not planned."""
        plan, kept = self.plan, self.reservation
        if self.bound >= self.min_member:
            state = "whole"
        elif plan is not None:
            state = "taken back" if plan.taken_back else "planned"
        elif self.released:
            state = "released"
        else:
            state = "waiting" if kept is None else "keeping"
        devices = [annotation(pod, DEVICES) for pod in self.released]
        named = ([] if kept is None else [kept.devices]) + [text for text in devices if text]
        return {
            "gang": self.job_id,
            "state": state,
            "min_member": self.min_member,
            "waiting": len(self.waiting),
            "released": len(self.released),
            "bound": self.bound,
            "devices": ",".join(named),
            "rollbacks": self.rolled_back.times,
            "why": why_not,
        }

    def job(self, resource: str, node_limits: Limits) -> Job | None:
        """Of the pods that wait; None if none of them asks for a device."""
        with_gpus = self.waiting_with(resource)
        if not with_gpus:
            return None
        size, plain = gpus_of(with_gpus[0], resource), len(self.waiting) - len(with_gpus)
        fewest = min(max(1, self.missing - plain), len(with_gpus))
        first = with_gpus[0]
        features = features_of(first, self.group)
        return Job(
            self.job_id,
            max(0.0, self.created_s),
            gpus=len(with_gpus) * size,
            min_gpus=fewest * size if fewest < len(with_gpus) else 0,
            gpus_per_task=size,
            node_limits=node_limits,
            features=features,
            iterations=0 if features is None else features.job.iterations,
            latency_sensitive=_said(first, self.group, CLASS) == "latency-sensitive",
            priority=int(first["spec"].get("priority") or 0),
        )

    def waiting_with(self, resource: str) -> tuple[Json, ...]:
        """Those of the pods that wait that ask for devices."""
        return tuple(pod for pod in self.waiting if gpus_of(pod, resource))


def gangs_of(pods: Iterable[Json], groups: Mapping[Name, Json]) -> dict[str, PodGang]:
    """All of which any pod was ever gated or is in a group, by their job ids."""
    of_group: dict[Name, list[Json]] = {name: [] for name in groups}
    alone: list[PodGang] = []
    for pod in pods:
        group = group_of(pod)
        if group is not None:
            of_group.setdefault(group, []).append(pod)
        elif GATE in gates(pod) or annotation(pod, BIND_BY):
            alone.append(PodGang(name_of(pod), None, (pod,)))
    grouped = [
        PodGang(name, groups.get(name), tuple(sorted(members, key=rank)))
        for name, members in of_group.items()
        if members or name in groups
    ]
    return {gang.job_id: gang for gang in sorted((*grouped, *alone), key=lambda one: one.job_id)}


def gpus_of(pod: Json, resource: str) -> int:
    """How many devices a pod asks for."""
    return requests(pod).get(resource, 0) // MILLI


def planned(pod: Json) -> list[tuple[str, int]]:
    """Node and number of each device that a released pod was to have.

    Whoever copies a pod copies its annotations too: while it is gated, they say nothing.
    """
    return [] if GATE in gates(pod) else devices_named(annotation(pod, DEVICES))


def features_of(pod: Json, group: Json | None) -> JobFeatures | None:
    """What forecasts of a pod are made of, as it says, or its PodGroup; None of what cannot be
    read.
    """
    return _features(_said(pod, group, JOB))


def _said(pod: Json, group: Json | None, name: str) -> str:
    return annotation(pod, name) or ("" if group is None else annotation(group, name))


@lru_cache(maxsize=4096)
def _features(text: str) -> JobFeatures | None:
    if not text:
        return None
    try:
        found = job_features.from_json(text, source=f"annotation {JOB}")
    except InvalidJobError:
        return None
    # Users name jobs as they like: what does the same has the same id, and nothing else has.
    digest = sha256(text.encode()).hexdigest()
    return replace(found, job=replace(found.job, job_id=digest))
