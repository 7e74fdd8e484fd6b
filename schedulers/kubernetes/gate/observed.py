"""A Kubernetes cluster as a ledger, built from nothing but what its API server says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from presage.schedulers.core.backend import make_ledger
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.policy import Policy
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.fleet import Fleet
from presage.schedulers.kubernetes.gate.annotations import parse_devices
from presage.schedulers.kubernetes.gate.node_outages import NodeOutages
from presage.schedulers.kubernetes.gate.pod_allocations import PodAllocations, pod_node
from presage.schedulers.kubernetes.gate.pod_gang import PodGang
from presage.schedulers.kubernetes.node_fit import NodeCapacity
from presage.schedulers.kubernetes.snapshot import Snapshot
from presage.schedulers.policies.packing.compatibility import Limits


@dataclass(frozen=True)
class Observed:
    """Gangs and pods of a cluster, entered into a ledger.

    Attributes
    ----------
    fleet : Fleet
        Nodes with devices.
    ledger : Ledger
        Each pod that has devices, or is planned to have them, is a running job of its own; each
        gang that can be planned is a job that is pending or holds a reservation.
    pod_allocations : PodAllocations
        The pods that have devices.
    without_devices : list of PodGang
        Gangs that can be planned, and of which no pod requests a device.
    blocked : dict of str to str
        Why gangs with gated pods cannot be planned, by job id.
    """

    fleet: Fleet
    ledger: Ledger
    pod_allocations: PodAllocations
    without_devices: list[PodGang] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)


def observe(
    fleet: Fleet,
    snapshot: Snapshot,
    gangs: Mapping[str, PodGang],
    predictions: PredictionCache,
    forecasts: Forecasts,
    policy: Policy,
    now_s: float,
    blocked: Collection[str] = (),
    outages: NodeOutages | None = None,
) -> Observed:
    """Return a ledger of what the API server says, and nothing else.

    Parameters
    ----------
    gangs : mapping of str to PodGang
        Gangs by job id.
    policy : Policy
        Its queue order, and its limits for pods that share a device.
    blocked : collection of str
        Job ids of gangs that cannot be planned now.
    outages : NodeOutages, optional
        History of the outages of devices; without it none has failed.
    """
    pods, groups = snapshot.pods, snapshot.pod_groups
    ledger = make_ledger(
        fleet.cluster, policy, forecasts,
        outages=None if outages is None else outages.history,
        device_ids=None if outages is None else outages.device_ids,
    )  # fmt: skip
    limits = Limits.from_needs(policy.needs)
    pod_allocations = PodAllocations(fleet, ledger, limits, predictions, forecasts)
    pod_allocations.sync(pods.values(), groups, now_s)
    observed = Observed(fleet, ledger, pod_allocations)
    placed = ((node, pod) for pod in pods.values() if (node := pod_node(pod, groups, now_s)))
    capacity = NodeCapacity(fleet.nodes, placed)
    pending: list[tuple[Job, PodGang]] = []
    for gang in gangs.values():
        why = gang.blocking_reason(fleet.resource)
        if why:
            observed.blocked[gang.job_id] = why
        elif gang.gated_pods and not gang.pods_to_release and not _is_blocked(gang, blocked):
            requesting = gang.gated_pods_requesting(fleet.resource)  # other pods fit anywhere
            job = gang.make_job(fleet.resource, capacity.limits(requesting))
            if job is None:
                observed.without_devices.append(gang)
            elif not job.node_limits:
                observed.blocked[gang.job_id] = (
                    "no node fits one of its pods, even without other pods: check their requests, "
                    "node selectors and tolerations"
                )
            else:
                pending.append((job, gang))
    predictions.expect(forecasts, [job for job, _ in pending])
    for job, gang in pending:
        _enter(observed, job, gang, now_s)
    return observed


def _is_blocked(gang: PodGang, blocked: Collection[str]) -> bool:
    """Return whether an earlier decision about a gang has to be completed before it is planned."""
    return gang.job_id in blocked or (gang.plan is not None and gang.plan.is_rolled_back)


def _enter(observed: Observed, job: Job, gang: PodGang, now_s: float) -> None:
    """Enter a gang as pending, with its reservation if the devices are still free."""
    count, last_s = gang.rollbacks.count, gang.rollbacks.last_s
    pending = JobStatus(Phase.PENDING, job.submit_s, rollbacks=count, rolled_back_s=last_s)
    reservation = gang.reservation
    if reservation is not None and now_s < reservation.until_s:
        found = [observed.fleet.device_index(*one) for one in parse_devices(reservation.devices)]
        devices = [device for device in found if device is not None]
        reserved = pending._replace(
            phase=Phase.RESERVED,
            allocations=observed.pod_allocations.allocations(job, devices),
            until_s=reservation.until_s,
        )
        if not observed.ledger.sync(job, reserved):
            return
    if why := observed.ledger.sync(job, pending):
        observed.blocked[job.job_id] = why
