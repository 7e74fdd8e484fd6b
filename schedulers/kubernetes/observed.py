"""A Kubernetes cluster as a ledger: what its API server says, and nothing remembered beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from presage.features.errors import ImpossibleActionError
from presage.schedulers.forecasts import Forecasts
from presage.schedulers.grant import Grant
from presage.schedulers.job import Job
from presage.schedulers.kubernetes.annotations import device_names, devices_named
from presage.schedulers.kubernetes.fleet import Fleet
from presage.schedulers.kubernetes.fresh_forecasts import FreshForecasts
from presage.schedulers.kubernetes.node_fit import likeness, limits_of, room_of
from presage.schedulers.kubernetes.pod_gang import PodGang, features_of, gangs_of, gpus_of, planned
from presage.schedulers.kubernetes.pods import Amounts, Name, bound_to, group_of, is_over, name_of
from presage.schedulers.kubernetes.snapshot import Json
from presage.schedulers.ledger import Ledger
from presage.schedulers.policies.neighbours import Limits
from presage.schedulers.queue import Key, Queue
from presage.schedulers.standing import Phase, Standing

Devices = Sequence[tuple[str, int]]  # each one's node, and number there


@dataclass(frozen=True)
class Observed:
    """What can be decided on.

    Attributes
    ----------
    gangs : mapping of str to PodGang
        All of them, by the ids of their jobs.
    ledger : Ledger
        Every pod that has devices, or is to have them, is a job of its own that runs; every gang
        that can be planned is one that waits, or keeps devices.
    room : mapping of str to amounts
        What is left of each node's resources.
    without_devices : list of PodGang
        Gangs that wait, and none of whose pods asks for a device.
    hindered : dict of str to str
        Why gangs of which pods wait cannot be planned, by the ids of their jobs.
    """

    fleet: Fleet
    gangs: Mapping[str, PodGang]
    ledger: Ledger
    room: Mapping[str, Amounts]
    without_devices: list[PodGang] = field(default_factory=list)
    hindered: dict[str, str] = field(default_factory=dict)

    def device(self, node: str, number: int) -> int | None:
        """A device by the name of its node and its number there; None of one that is not there."""
        place = self.fleet.places.get(node)
        if place is None or number >= self.fleet.cluster.nodes[place].devices:
            return None
        return self.fleet.cluster.first_device[place] + number

    def names(self, devices: Iterable[int]) -> str:
        """Of devices, as annotations have them."""
        cluster = self.fleet.cluster
        at = ((cluster.node_of[device], device) for device in devices)
        return device_names(
            (cluster.nodes[node].name, device - cluster.first_device[node]) for node, device in at
        )

    def grants(self, job: Job, devices: Iterable[int], needs: Needs) -> tuple[Grant, ...]:
        """Of a job on some devices: as much as it needs, all of one that is not shared."""
        cluster = self.fleet.cluster
        return tuple(
            Grant(device, *needs(job, cluster.kind_of(device)))
            if self.fleet.share[cluster.node_of[device]] > 1
            else cluster.whole[device]
            for device in devices
        )


Needs = Callable[[Job, str], tuple[int, int]]  # compute_milli and memory_bytes on a kind


def observe(
    fleet: Fleet,
    pods: Mapping[Name, Json],
    groups: Mapping[Name, Json],
    fresh: FreshForecasts,
    forecasts: Forecasts,
    limits: Limits,
    key: Callable[[Job, Standing], Key],
    now_s: float,
    stuck: Collection[str] = (),
) -> Observed:
    """A cluster as it is.

    Parameters
    ----------
    limits : Limits
        What a pod that shares a device takes of it.
    key : callable
        The place of a gang in the queue.
    now_s : float
        Plans that should have come true by now hold nothing for pods that are not released.
    stuck : collection of str
        Job ids of gangs that cannot be planned now, whatever they have.
    """
    gangs = gangs_of(pods.values(), groups)
    to_be = {  # what pods that are not released yet are to have, by uid
        pod["metadata"]["uid"]: devices_named(gang.plan.devices[pod["metadata"]["uid"]])
        for gang in gangs.values()
        if gang.plan is not None and (gang.plan.bind_by_s is None or now_s < gang.plan.bind_by_s)
        for pod in gang.to_release
    }
    has = {name: to_be.get(pod["metadata"]["uid"]) or planned(pod) for name, pod in pods.items()}
    holders = [(node, pod) for name, pod in pods.items() if (node := _node(pod, has[name]))]
    room = room_of(fleet.nodes, holders)
    observed = Observed(fleet, gangs, Ledger(fleet.cluster, Queue(key)), room)

    def needs(job: Job, kind: str) -> tuple[int, int]:
        return limits.needs(forecasts.outlook(job, kind))

    # Those whose devices are known have them; of the others it can only be guessed.
    holders.sort(key=lambda held: (not has[name_of(held[1])], name_of(held[1])))
    jobs = [(_occupant(pod, groups, fleet), node, pod) for node, pod in holders]
    waiting = []
    limits_by: dict[Hashable, tuple[tuple[str, int], ...]] = {}  # a thousand nodes take a while
    for gang in gangs.values():
        why = gang.why_not(fleet.resource)
        if why:
            observed.hindered[gang.job_id] = why
        elif gang.waiting and not gang.to_release and not _is_stuck(gang, stuck):
            with_gpus = gang.waiting_with(fleet.resource)  # the others may be anywhere
            alike = likeness(with_gpus)
            if alike not in limits_by:
                limits_by[alike] = limits_of(with_gpus, fleet.nodes, room)
            job = gang.job(fleet.resource, limits_by[alike])
            if job is None:
                observed.without_devices.append(gang)
            else:
                waiting.append((job, gang))
    fresh.expect(
        forecasts, [job for job, *_ in jobs if job is not None] + [job for job, _ in waiting]
    )
    for occupant, node, pod in jobs:
        if occupant is not None:
            _occupy(observed, occupant, node, has[name_of(pod)], needs)
    for job, gang in waiting:
        _wait(observed, job, gang, needs)
    return observed


def _is_stuck(gang: PodGang, stuck: Collection[str]) -> bool:
    """Whether what was decided of a gang has to be brought to its end before it is planned."""
    return gang.job_id in stuck or (gang.plan is not None and gang.plan.taken_back)


def _node(pod: Json, at: Devices) -> str:
    """Where a pod has, or is to have, something; "" of one that has nothing anywhere."""
    if is_over(pod):
        return ""
    return bound_to(pod) or (at[0][0] if at else "")


def _occupant(pod: Json, groups: Mapping[Name, Json], fleet: Fleet) -> Job | None:
    """A pod that has devices, as a job; None of one that asks for none."""
    gpus = gpus_of(pod, fleet.resource)
    if not gpus:
        return None
    group = group_of(pod)
    features = features_of(pod, groups.get(group) if group else None)
    return Job(occupant_id(pod), 0.0, gpus=gpus, features=features)


def occupant_id(pod: Json) -> str:
    """Of a pod that has devices; unlike the ids of gangs."""
    return "on/" + "/".join(name_of(pod))


def _occupy(observed: Observed, job: Job, node: str, at: Devices, needs: Needs) -> None:
    """Let a pod have the devices that it was to have, else those that most is left of.

    So does a device plugin that shares devices out evenly. What the API server says is so, also
    where it cannot be: of devices that others have a pod gets what is left, or nothing.
    """
    place = observed.fleet.places.get(node)
    if place is None:
        return
    cluster, ledger = observed.fleet.cluster, observed.ledger
    named = [observed.device(*one) for one in at]
    devices = [one for one in named if one is not None and cluster.node_of[one] == place]
    if len(devices) != job.gpus:
        emptiest = sorted(cluster.devices_of(place), key=lambda one: (len(ledger.on(one)), one))
        devices = emptiest[: job.gpus]
    grants = observed.grants(job, devices, needs)
    left = tuple(
        Grant(
            device,
            min(compute_milli, int(ledger.room.compute_milli[device])),
            min(memory_bytes, int(ledger.room.memory_bytes[device])),
        )
        for device, compute_milli, memory_bytes in grants
    )
    held = tuple(grant for grant in left if grant.compute_milli > 0)
    if held:
        ledger.adopt(job, Standing(Phase.RUNNING, 0.0, held))


def _wait(observed: Observed, job: Job, gang: PodGang, needs: Needs) -> None:
    """Let a gang wait, with what it keeps if that is still to be had."""
    back = gang.rolled_back
    waits = Standing(Phase.PENDING, job.submit_s, rollbacks=back.times, rolled_back_s=back.at_s)
    kept = gang.reservation
    if kept is not None:
        named = [observed.device(*one) for one in devices_named(kept.devices)]
        grants = observed.grants(job, [one for one in named if one is not None], needs)
        standing = waits._replace(phase=Phase.RESERVED, grants=grants, until_s=kept.until_s)
        try:
            why = observed.ledger.adopt(job, standing)
        except ImpossibleActionError:  # others have it by now
            why = observed.ledger.adopt(job, waits)
    else:
        why = observed.ledger.adopt(job, waits)
    if why:
        observed.hindered[job.job_id] = why
