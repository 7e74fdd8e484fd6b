"""Pods that have devices, or are to have them, as jobs that run in a ledger."""

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
from presage.schedulers.kubernetes.gate.annotations import Plan, devices_named
from presage.schedulers.kubernetes.gate.pod_gang import features_of, gpus_of
from presage.schedulers.kubernetes.kubernetes_names import DEVICES, GATE, PLAN
from presage.schedulers.kubernetes.pods import (
    Name,
    annotation,
    bound_to,
    gates,
    group_of,
    is_over,
)
from presage.schedulers.kubernetes.snapshot import Json
from presage.schedulers.policies.packing.compatibility import Limits


def devices_of(pod: Json, groups: Mapping[Name, Json], now_s: float) -> str:
    """What a pod has or is to have, as annotations name devices; empty where nobody said.

    While it is gated its gang's plan says it, for as long as that holds.
    """
    if GATE not in gates(pod):
        return annotation(pod, DEVICES)
    group = group_of(pod)
    plan = Plan.from_json(annotation(groups[group], PLAN)) if group and group in groups else None
    if plan is None or plan.taken_back or (plan.bind_by_s or math.inf) <= now_s:
        return ""
    return plan.devices.get(pod["metadata"]["uid"], "")


def node_of(pod: Json, groups: Mapping[Name, Json], now_s: float) -> str:
    """Where a pod has, or is to have, something; empty of one that has nothing anywhere."""
    return _node(pod, devices_of(pod, groups, now_s))


def occupant_id(pod: Json, groups: Mapping[Name, Json], now_s: float) -> str:
    """Of a pod that has devices: another one for other devices, and unlike the ids of gangs."""
    return _id(pod, devices_of(pod, groups, now_s))


def _node(pod: Json, devices: str) -> str:
    if is_over(pod):
        return ""
    at = devices_named(devices)
    return bound_to(pod) or (at[0][0] if at else "")


def _id(pod: Json, devices: str) -> str:
    return f"on/{pod['metadata'].get('uid')}/{bound_to(pod)}/{devices}"


class Occupants:
    """Of a ledger: each pod that has devices is a job of its own, which runs.

    Parameters
    ----------
    limits : Limits
        What a pod that shares a device takes of it.
    """

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        limits: Limits,
        fresh: PredictionCache,
        forecasts: Forecasts,
    ) -> None:
        self._fleet, self._ledger, self._limits = fleet, ledger, limits
        self._fresh, self._forecasts = fresh, forecasts
        self._there: set[str] = set()  # ids of those that were put into the ledger

    def follow(self, pods: Iterable[Json], groups: Mapping[Name, Json], now_s: float) -> None:
        """Let those go that are gone, and come that came."""
        now: dict[str, tuple[str, str, Json]] = {}
        for pod in pods:
            devices = devices_of(pod, groups, now_s)
            node = _node(pod, devices)
            if node and gpus_of(pod, self._fleet.resource):
                now[_id(pod, devices)] = node, devices, pod
        for job_id in self._there - now.keys():
            if job_id in self._ledger.running:
                self._ledger.end(job_id, Phase.FINISHED, 0.0)
        # Those whose devices are known have them; of the others it can only be guessed.
        came = [
            (not devices, job_id)
            for job_id, (_, devices, _) in now.items()
            if job_id not in self._there
        ]
        self._there = set(now)
        jobs = {job_id: self._job(job_id, now[job_id][2], groups) for _, job_id in sorted(came)}
        self._fresh.expect(self._forecasts, list(jobs.values()))
        for job_id, job in jobs.items():
            node, devices, _ = now[job_id]
            self._occupy(job, node, devices_named(devices))

    def allocations(self, job: Job, devices: Iterable[int]) -> tuple[Allocation, ...]:
        """Of a job on some devices: as much as it needs, all of one that is not shared."""
        cluster, share = self._fleet.cluster, self._fleet.share
        return tuple(
            cluster.full_allocations[device]
            if share[cluster.node_of[device]] == 1
            else Allocation(
                device,
                *self._limits.needs(self._forecasts.prediction(job, cluster.kind_of(device))),
            )
            for device in devices
        )

    def _job(self, job_id: str, pod: Json, groups: Mapping[Name, Json]) -> Job:
        group = group_of(pod)
        features = features_of(pod, groups.get(group) if group else None)
        return Job(job_id, 0.0, gpus=gpus_of(pod, self._fleet.resource), features=features)

    def _occupy(self, job: Job, node: str, at: Sequence[tuple[str, int]]) -> None:
        """Let a pod have the devices that it was to have, else those that fewest have.

        So does a device plugin that shares devices out evenly. What the API server says is so, also
        where it cannot be: of devices that others have a pod gets what is left, or nothing.
        """
        place = self._fleet.places.get(node)
        if place is None:
            return
        cluster, ledger = self._fleet.cluster, self._ledger
        named = [self._fleet.device(*one) for one in at]
        devices = [one for one in named if one is not None and cluster.node_of[one] == place]
        if len(devices) != job.gpus:
            emptiest = sorted(
                cluster.devices_of(place), key=lambda one: (len(ledger.jobs_on(one)), one)
            )
            devices = emptiest[: job.gpus]
        capacity = ledger.capacity
        left = (
            Allocation(
                device,
                min(compute_milli, int(capacity.compute_milli[device])),
                min(memory_bytes, int(capacity.memory_bytes[device])),
            )
            for device, compute_milli, memory_bytes in self.allocations(job, devices)
        )
        held = tuple(allocation for allocation in left if allocation.compute_milli > 0)
        if held:
            ledger.adopt(job, JobStatus(Phase.RUNNING, 0.0, held))
