"""State of the gate as a snapshot from which simulations start. Pure: does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from presage.errors import ConfigError
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.kubernetes.gate.annotations import parse_time_or_none
from presage.schedulers.kubernetes.gate.gang_gate import Gate
from presage.schedulers.kubernetes.gate.pod_allocations import pod_job_id
from presage.schedulers.kubernetes.gate.pod_gang import PodGang, group_pods
from presage.schedulers.kubernetes.snapshot import Json, Snapshot
from presage.schedulers.what_if.snapshot import Snapshot as WhatIfSnapshot
from presage.schedulers.what_if.snapshot import take_snapshot

_ASSUMPTIONS = (
    "kube-scheduler binds the pods of a planned gang at once, and no pod without the gate takes "
    "devices",
    "only devices and taints delay pods: CPUs and memory are those of nodes without other pods",
)


def copy_gate(gate: Gate, snapshot: Snapshot, now_s: float) -> WhatIfSnapshot:
    """Return the snapshot of the gangs and pods that the gate sees.

    Gangs that wait are jobs of their names, as in ``presage kubernetes gangs``. Each pod with
    devices is a running job of its own. The ``activeDeadlineSeconds`` of pods are time limits, and
    pods that terminate end by the time of their deletion.

    Raises
    ------
    ConfigError
        No node has devices.
    """
    gangs = group_pods(snapshot.pods.values(), snapshot.pod_groups)
    backend = gate.backend(snapshot, gangs)
    if backend is None:
        raise ConfigError(
            "no node has devices, so no start can be predicted; `kubectl describe nodes` has the "
            "allocatable resources, and --resource names that of the devices"
        )
    observed, view = backend.observe_gangs(now_s)
    found = take_snapshot(view.state)
    pods = {pod_job_id(pod, snapshot.pod_groups, now_s): pod for pod in snapshot.pods.values()}
    blocked = {one: why for one, why in observed.blocked.items() if one not in found.jobs}
    known = {one: _without_other_pods(job) for one, job in found.jobs.items()}
    jobs = {**known, **{one: Job(one, gangs[one].created_s) for one in blocked}}
    return replace(
        found,
        jobs=jobs,
        active={
            one: _since_start(status, pods.get(one), now_s) for one, status in found.active.items()
        },
        closed=blocked,
        limits_s=dict(_limits(found, gangs, pods)),
        assumptions=_ASSUMPTIONS,
    )


def _without_other_pods(job: Job) -> Job:
    """Return a job that may have as many tasks on a node as if no other pods ran there."""
    if job.node_limits is None:
        return job
    return replace(job, node_limits=tuple((node, most, most) for node, _, most in job.node_limits))


def _since_start(status: JobStatus, pod: Json | None, now_s: float) -> JobStatus:
    """Return the status of a pod with the time of its start; unchanged if it has not started."""
    begun_s = _start_s(pod or {})
    if begun_s is None or not status.allocations:
        return status
    begun_s = min(begun_s, now_s)  # clocks differ
    return status._replace(since_s=begun_s, starts=1, first_start_s=begun_s)


def _limits(
    found: WhatIfSnapshot, gangs: Mapping[str, PodGang], pods: Mapping[str, Json]
) -> Iterator[tuple[str, float]]:
    for job_id in found.jobs:
        members = [pods[job_id]] if job_id in pods else []
        if job_id in gangs:
            members = list(gangs[job_id].gated_pods)
        limits_s = [_limit_s(pod, found.now_s) for pod in members]
        if limits_s and max(limits_s) < math.inf:
            yield job_id, float(max(limits_s))


def _limit_s(pod: Json, now_s: float) -> float:
    """Return the run time of a pod at which it ends at the latest; infinite without a limit."""
    limit_s = float(pod["spec"].get("activeDeadlineSeconds") or math.inf)
    deleted_s = parse_time_or_none(pod["metadata"].get("deletionTimestamp") or "")
    if deleted_s is None:
        return limit_s
    begun_s = _start_s(pod)
    return min(limit_s, max(1.0, deleted_s - (now_s if begun_s is None else begun_s)))


def _start_s(pod: Json) -> float | None:
    return parse_time_or_none((pod.get("status") or {}).get("startTime") or "")
