"""Device allocations of bound and planned pods, as running jobs of a ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.fleet import Fleet
from presage.schedulers.kubernetes.gate.annotations import Plan, parse_devices
from presage.schedulers.kubernetes.gate.pod_gang import pod_features, requested_gpus
from presage.schedulers.kubernetes.kubernetes_names import DEVICES, GATE, PLAN
from presage.schedulers.kubernetes.pods import (
    NamespacedName,
    annotation,
    bound_node,
    is_finished,
    pod_group_name,
    scheduling_gates,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.schedulers.policies.packing.compatibility import Limits


def pod_devices(pod: Json, groups: Mapping[NamespacedName, Json], now_s: float) -> str:
    """Return the devices of a pod in the format of annotations; empty if they are unknown.

    The devices of a gated pod are those in the plan of its gang, while that plan is valid.
    """
    if GATE not in scheduling_gates(pod):
        return annotation(pod, DEVICES)
    group = pod_group_name(pod)
    plan = Plan.from_json(annotation(groups[group], PLAN)) if group and group in groups else None
    if plan is None or plan.is_rolled_back or (plan.bind_deadline_s or math.inf) <= now_s:
        return ""
    return plan.devices.get(pod["metadata"]["uid"], "")


def pod_node(pod: Json, groups: Mapping[NamespacedName, Json], now_s: float) -> str:
    """Return the node on which a pod is bound or planned; empty if there is none."""
    return _node(pod, pod_devices(pod, groups, now_s))


def pod_job_id(pod: Json, groups: Mapping[NamespacedName, Json], now_s: float) -> str:
    """Return the id of a pod's job in the ledger: unique by devices, and unlike ids of gangs."""
    return _job_id(pod, pod_devices(pod, groups, now_s))


def _node(pod: Json, devices: str) -> str:
    if is_finished(pod):
        return ""
    parsed = parse_devices(devices)
    return bound_node(pod) or (parsed[0][0] if parsed else "")


def _job_id(pod: Json, devices: str) -> str:
    return f"on/{pod['metadata'].get('uid')}/{bound_node(pod)}/{devices}"


class PodAllocations:
    """Ledger entries of pods with devices: each pod is one running job.

    Parameters
    ----------
    limits : Limits
        Limits that give the allocation of a pod on a shared device.
    """

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        limits: Limits,
        predictions: PredictionCache,
        forecasts: Forecasts,
    ) -> None:
        self._fleet, self._ledger, self._limits = fleet, ledger, limits
        self._predictions, self._forecasts = predictions, forecasts
        self._job_ids: set[str] = set()  # of pods in the ledger

    def sync(
        self, pods: Iterable[Json], groups: Mapping[NamespacedName, Json], now_s: float
    ) -> None:
        """Add new pods to the ledger, and remove pods that are gone."""
        current: dict[str, tuple[str, str, Json]] = {}
        for pod in pods:
            devices = pod_devices(pod, groups, now_s)
            node = _node(pod, devices)
            if node and requested_gpus(pod, self._fleet.resource):
                current[_job_id(pod, devices)] = node, devices, pod
        for job_id in self._job_ids - current.keys():
            if job_id in self._ledger.running:
                self._ledger.end(job_id, Phase.FINISHED, 0.0)
        # Pods with known devices come first; the devices of the other pods are a guess.
        added = [
            (not devices, job_id)
            for job_id, (_, devices, _) in current.items()
            if job_id not in self._job_ids
        ]
        self._job_ids = set(current)
        jobs = {
            job_id: self._job(job_id, current[job_id][2], groups) for _, job_id in sorted(added)
        }
        self._predictions.expect(self._forecasts, list(jobs.values()))
        for job_id, job in jobs.items():
            node, devices, _ = current[job_id]
            self._allocate(job, node, parse_devices(devices))

    def allocations(self, job: Job, devices: Iterable[int]) -> tuple[Allocation, ...]:
        """Return what a job needs of each device: all of it if the device is not shared."""
        cluster, pods_per_device = self._fleet.cluster, self._fleet.pods_per_device
        return tuple(
            cluster.full_allocations[device]
            if pods_per_device[cluster.node_of[device]] == 1
            else Allocation(
                device,
                *self._limits.needs(self._forecasts.prediction(job, cluster.kind_of(device))),
            )
            for device in devices
        )

    def _job(self, job_id: str, pod: Json, groups: Mapping[NamespacedName, Json]) -> Job:
        group = pod_group_name(pod)
        features = pod_features(pod, groups.get(group) if group else None)
        return Job(job_id, 0.0, gpus=requested_gpus(pod, self._fleet.resource), features=features)

    def _allocate(self, job: Job, node: str, planned: Sequence[tuple[str, int]]) -> None:
        """Allocate the planned devices to a pod, or else the devices with the fewest pods.

        A device plugin that spreads pods evenly does the same. The API server is authoritative,
        even where allocations conflict: a pod gets only the free part of devices in use.
        """
        index = self._fleet.node_index.get(node)
        if index is None:
            return
        cluster, ledger = self._fleet.cluster, self._ledger
        found = [self._fleet.device_index(*pair) for pair in planned]
        devices = [
            device for device in found if device is not None and cluster.node_of[device] == index
        ]
        if len(devices) != job.gpus:
            by_pods = sorted(
                cluster.devices_of(index), key=lambda device: (len(ledger.jobs_on(device)), device)
            )
            devices = by_pods[: job.gpus]
        capacity = ledger.capacity
        free = (
            Allocation(
                device,
                min(compute_milli, int(capacity.compute_milli[device])),
                min(memory_bytes, int(capacity.memory_bytes[device])),
            )
            for device, compute_milli, memory_bytes in self.allocations(job, devices)
        )
        allocations = tuple(allocation for allocation in free if allocation.compute_milli > 0)
        if allocations:
            ledger.sync(job, JobStatus(Phase.RUNNING, 0.0, allocations))
