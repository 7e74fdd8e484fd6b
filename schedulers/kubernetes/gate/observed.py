"""A Kubernetes cluster as a ledger: what its API server says, and nothing remembered beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from presage.errors import ImpossibleActionError
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.policy import Policy
from presage.schedulers.core.queue import Queue
from presage.schedulers.forecasters.prediction_cache import PredictionCache
from presage.schedulers.kubernetes.fleet import Fleet
from presage.schedulers.kubernetes.gate.annotations import devices_named
from presage.schedulers.kubernetes.gate.occupants import Occupants, node_of
from presage.schedulers.kubernetes.gate.pod_gang import PodGang
from presage.schedulers.kubernetes.node_fit import NodeCapacity
from presage.schedulers.kubernetes.snapshot import Snapshot
from presage.schedulers.policies.packing.compatibility import Limits


@dataclass(frozen=True)
class Observed:
    """What can be decided on.

    Attributes
    ----------
    gangs : mapping of str to PodGang
        By the ids of their jobs.
    ledger : Ledger
        Every pod that has devices, or is to have them, is a job of its own that runs; every gang
        that can be planned is one that waits, or keeps devices.
    occupants : Occupants
        The former.
    without_devices : list of PodGang
        Gangs that wait, and none of whose pods asks for a device.
    hindered : dict of str to str
        Why gangs of which pods wait cannot be planned, by the ids of their jobs.
    """

    fleet: Fleet
    gangs: Mapping[str, PodGang]
    ledger: Ledger
    occupants: Occupants
    without_devices: list[PodGang] = field(default_factory=list)
    hindered: dict[str, str] = field(default_factory=dict)


def observe(
    fleet: Fleet,
    snapshot: Snapshot,
    gangs: Mapping[str, PodGang],
    fresh: PredictionCache,
    forecasts: Forecasts,
    policy: Policy,
    now_s: float,
    stuck: Collection[str] = (),
) -> Observed:
    """A cluster as it is.

    Parameters
    ----------
    gangs : mapping of str to PodGang
        That matter, by the ids of their jobs.
    policy : Policy
        Whose limits say what a pod that shares a device takes of it, and who is served first.
    stuck : collection of str
        Job ids of gangs that cannot be planned now, whatever they have.
    """
    pods, groups = snapshot.pods, snapshot.pod_groups
    queue = Queue(lambda job, status: policy.key(job, status, forecasts))
    ledger = Ledger(fleet.cluster, queue)
    occupants = Occupants(fleet, ledger, Limits.from_needs(policy.needs), fresh, forecasts)
    occupants.follow(pods.values(), groups, now_s)
    observed = Observed(fleet, gangs, ledger, occupants)
    holders = ((node, pod) for pod in pods.values() if (node := node_of(pod, groups, now_s)))
    capacity = NodeCapacity(fleet.nodes, holders)
    waiting: list[tuple[Job, PodGang]] = []
    for gang in gangs.values():
        why = gang.why_not(fleet.resource)
        if why:
            observed.hindered[gang.job_id] = why
        elif gang.waiting and not gang.to_release and not _is_stuck(gang, stuck):
            with_gpus = gang.waiting_with(fleet.resource)  # the others may be anywhere
            job = gang.job(fleet.resource, capacity.limits(with_gpus))
            if job is None:
                observed.without_devices.append(gang)
            elif not job.node_limits:
                observed.hindered[gang.job_id] = (
                    "no node can take one of its pods, not even an empty one: look at what they "
                    "request, at their selectors and tolerations"
                )
            else:
                waiting.append((job, gang))
    fresh.expect(forecasts, [job for job, _ in waiting])
    for job, gang in waiting:
        _wait(observed, job, gang, now_s)
    return observed


def _is_stuck(gang: PodGang, stuck: Collection[str]) -> bool:
    """Whether what was decided of a gang has to be brought to its end before it is planned."""
    return gang.job_id in stuck or (gang.plan is not None and gang.plan.taken_back)


def _wait(observed: Observed, job: Job, gang: PodGang, now_s: float) -> None:
    """Let a gang wait, with what it keeps if that is still to be had."""
    back = gang.rolled_back
    waits = JobStatus(Phase.PENDING, job.submit_s, rollbacks=back.times, rolled_back_s=back.at_s)
    kept = gang.reservation
    if kept is not None and now_s < kept.until_s:
        named = [observed.fleet.device(*one) for one in devices_named(kept.devices)]
        allocations = observed.occupants.allocations(job, [one for one in named if one is not None])
        status = waits._replace(phase=Phase.RESERVED, allocations=allocations, until_s=kept.until_s)
        try:
            why = observed.ledger.adopt(job, status)
        except ImpossibleActionError:  # others have it by now
            why = observed.ledger.adopt(job, waits)
    else:
        why = observed.ledger.adopt(job, waits)
    if why:
        observed.hindered[job.job_id] = why
