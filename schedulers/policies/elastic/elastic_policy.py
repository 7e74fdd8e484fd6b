"""Elastic scheduling: jobs shrink to admit others, and grow by predicted marginal speed-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from presage.errors import ConfigError
from presage.schedulers.core.action import Action, Preempt, Resize, Start, Wake
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy, PolicyNeeds
from presage.schedulers.core.queue import Key
from presage.schedulers.core.speedup import fewest_nodes
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.device_choice import choose_devices, nodes_of
from presage.schedulers.policies.elastic.job_speed import JobSpeed
from presage.schedulers.policies.elastic.sizes import (
    Demand,
    Increment,
    allocate,
    completion_rate,
    increments,
)

MOST_GROWTH = 2  # largest size over the largest one that was measured
_SCANNED = 2.0  # pending jobs are considered until their fewest devices are as many clusters
_MOST_CACHED = 20_000


class Elastic(Policy):
    """Policy that resizes elastic jobs, and starts and preempts jobs as ``srtf`` does.

    At each decision the devices are divided anew. Increments of devices go to jobs by class, then
    priority, then the gain in the job's rate of completion per device: its predicted speed-up over
    its remaining time. An increment of a waiting job is the fewest devices that it runs on, so
    running jobs shrink to admit it where that gains more. A job grows beyond its request only on
    devices that no job uses up to its request. Speeds are predicted and, once a job has run, fitted
    to its measured steps. Jobs prefer few nodes: a size counts as fast as it is on the nodes where
    devices are idle.

    Parameters
    ----------
    hold_s : float
        Time after a start or a resize before a job may grow.
    gain : float
        Least predicted gain in speed for a job to grow or to move to fewer nodes.

    Raises
    ------
    ConfigError
        A parameter is negative or not finite.
    """

    needs = PolicyNeeds(preempts=True, resizes=True)

    def __init__(self, hold_s: float = 60.0, gain: float = 0.05) -> None:
        for name, value in (("hold_s", hold_s), ("gain", gain)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"policy 'elastic': {name}={value}, must be a finite number >= 0")
        self.hold_s, self.gain = hold_s, gain
        self._increments: dict[tuple[object, ...], tuple[Increment, ...]] = {}

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then the predicted remaining device-seconds as requested."""
        left_s = forecasts.runtime_s(job) * job.gpus - status.attained_s
        return (-job.priority, max(0.0, left_s), job.submit_s)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Divide the devices anew; preempt, shrink, start and grow jobs accordingly."""
        if not len(state.pending) and not state.running:
            return []
        contenders = list(self._contenders(state, forecasts))
        total = state.idle_count + sum(len(one.own) for one in contenders)
        sizes = allocate([one.demand for one in contenders], total)
        return _Placement(self, state, contenders, sizes).actions()

    def _contenders(self, state: State, forecasts: Forecasts) -> Iterator[Contender]:
        """Yield the running jobs, and the first of the pending jobs."""
        for job_id, status in state.running.items():
            yield self._contender(state.job(job_id), status, state, forecasts)
        scanned, most = 0, _SCANNED * state.cluster.devices
        for job in state.pending:
            yield self._contender(job, state.status(job.job_id), state, forecasts)
            scanned += job.fewest_gpus
            if scanned >= most:
                break

    def _contender(
        self, job: Job, status: JobStatus, state: State, forecasts: Forecasts
    ) -> Contender:
        own = [allocation.device for allocation in status.allocations]
        cluster = state.cluster
        kind = cluster.kind_of(own[0]) if own else _fastest_kind(job, forecasts, state)
        measured_s = state.paces_s(job.job_id)
        speed = JobSpeed(job, kind, forecasts, measured_s)
        key = (job.job_id, job.kinds, kind, tuple(measured_s.items()), len(own))
        found = self._increments.get(key)
        if found is None:
            if len(self._increments) > _MOST_CACHED:
                self._increments = {}
            largest = cluster.nodes_of(job.kinds).largest
            found = self._increments[key] = self._increments_of(
                job,
                _sizes(job, speed, own, state),
                lambda gpus: speed.run_s((gpus, fewest_nodes(gpus, largest))),
            )
        demand = self._demand(job, found, 1.0 - state.progress(job.job_id))
        return Contender(job, status, own, speed, demand)

    def _increments_of(
        self, job: Job, sizes: Sequence[int], run_s: Callable[[int], float]
    ) -> tuple[Increment, ...]:
        """Return the increments of a job, given the run time of the whole job by size."""
        return increments(sizes, lambda gpus: completion_rate(run_s(gpus)), job.gpus)

    def _demand(self, job: Job, found: tuple[Increment, ...], left: float) -> Demand:
        return Demand((not job.latency_sensitive, -job.priority), left, found, job.gpus)


@dataclass(frozen=True, slots=True)
class Contender:
    """Running or waiting job; ``own`` are the devices that it has."""

    job: Job
    status: JobStatus
    own: list[int]
    speed: JobSpeed
    demand: Demand

    @property
    def is_resizable(self) -> bool:
        """Whether the job runs on exclusive devices and may have another number of them."""
        return self.job.is_elastic and self.job.gpus_per_task == 1 and not self.job.node_limits


def _fastest_kind(job: Job, forecasts: Forecasts, state: State) -> str:
    kinds = [kind for kind in state.cluster.kinds if not job.kinds or kind in job.kinds]
    return min(kinds, key=lambda kind: forecasts.prediction(job, kind).runtime_s)


def _sizes(job: Job, speed: JobSpeed, own: Sequence[int], state: State) -> Sequence[int]:
    """Return the numbers of devices that a job may get."""
    if not job.is_elastic or job.gpus_per_task > 1 or job.node_limits:
        return [len(own) or gang_size(job, state.cluster)]
    most = min(job.most_gpus, state.cluster.nodes_of(job.kinds).devices)
    limit = job.gpus if not speed.is_known else MOST_GROWTH * speed.largest_measured
    return range(job.fewest_gpus, max(job.fewest_gpus, min(most, limit)) + 1)


class _Placement:
    """Actions that lead from the present devices of jobs to their sizes."""

    def __init__(
        self, policy: Elastic, state: State, contenders: Sequence[Contender], sizes: Sequence[int]
    ) -> None:
        self._policy, self._state, self._cluster = policy, state, state.cluster
        self._idle: IdleDevices = state.idle()
        self._released: list[Action] = []
        self._placed: list[tuple[Contender, Action, int]] = []  # with its number of new devices
        self._wake_s = math.inf
        self._sizes = dict(zip((one.job.job_id for one in contenders), sizes, strict=True))
        self._in_order = sorted(
            contenders,
            key=lambda one: (one.demand.rank, -_first_density(one.demand), one.job.job_id),
        )
        self._evicted: set[str] = set()

    def actions(self) -> list[Action]:
        """Return the actions, those that free devices first."""
        kept: list[Contender] = []
        for one in self._in_order:
            target = self._sizes[one.job.job_id]
            if not one.own:
                continue
            if target == 0:
                self._evict(one)
            elif target < len(one.own):
                kept.append(self._shrink(one, target))
            else:
                kept.append(one)
        running = {one.job.job_id: one for one in kept}
        for one in self._in_order:
            if one.job.job_id in self._evicted:
                continue
            if not one.own:
                self._start(one, self._sizes[one.job.job_id], running)
            elif one.is_resizable and self._sizes[one.job.job_id] >= len(one.own):
                self._grow(one)
        placed = self._without_overtaking()
        wakes = [Wake(self._wake_s)] if self._wake_s < math.inf else []
        return [*self._released, *placed, *wakes]

    def _evict(self, one: Contender) -> None:
        self._released.append(Preempt(one.job.job_id))
        self._evicted.add(one.job.job_id)
        self._idle.give(one.own)

    def _shrink(self, one: Contender, target: int) -> Contender:
        nothing_idle = self._idle.copy()
        nothing_idle.take([d for d in range(self._cluster.devices) if nothing_idle.is_idle(d)])
        kept = choose_devices(target, one.own, nothing_idle, self._cluster, 0) or one.own
        self._idle.give(sorted({*one.own} - {*kept}))
        self._released.append(Resize(one.job.job_id, self._allocations(kept)))
        return Contender(one.job, one.status, kept, one.speed, one.demand)

    def _start(self, one: Contender, target: int, running: dict[str, Contender]) -> None:
        if not target:
            return
        if not one.is_resizable:
            self._start_rigid(one, running)
            return
        devices = self._best(one, target)
        if devices is not None:
            self._idle.take(sorted(devices))
            start = Start(one.job.job_id, self._allocations(devices))
            self._placed.append((one, start, len(devices)))

    def _start_rigid(self, one: Contender, running: dict[str, Contender]) -> None:
        """Start a job of a fixed size; it may take the devices of jobs of a lower rank."""
        allocations = place_consolidated(one.job, self._cluster, self._idle)
        if allocations is None:
            allocations, victims = self._in_place_of(one, running)
            taken = sorted(allocation.device for allocation in allocations or ())
            for held in victims:
                if not set(taken).isdisjoint(held.own):
                    self._drop_resize(held)
                    self._evict(held)
            self._idle.take(taken)
        if allocations is not None:
            self._placed.append((one, Start(one.job.job_id, allocations), len(allocations)))

    def _in_place_of(
        self, one: Contender, running: dict[str, Contender]
    ) -> tuple[tuple[Allocation, ...] | None, list[Contender]]:
        """Return the devices of a job, taken from jobs of a lower rank too, and these jobs."""
        freed, victims = self._idle.copy(), []
        behind = self._in_order[self._in_order.index(one) + 1 :]
        for other in reversed(behind):
            held = running.get(other.job.job_id)
            if held is None or held.job.job_id in self._evicted or self._is_placed(held):
                continue
            victims.append(held)
            freed.give(held.own)
            allocations = place_consolidated(one.job, self._cluster, freed)
            if allocations is not None:
                return allocations, victims
        return None, []

    def _is_placed(self, one: Contender) -> bool:
        return any(other.job.job_id == one.job.job_id for other, _, _ in self._placed)

    def _drop_resize(self, one: Contender) -> None:
        self._released = [
            action
            for action in self._released
            if not (isinstance(action, Resize) and action.job_id == one.job.job_id)
        ]

    def _grow(self, one: Contender) -> None:
        """Give a job more devices, or devices on fewer nodes, if it gains speed by it."""
        target = self._sizes[one.job.job_id]
        nodes = nodes_of(one.own, self._cluster)
        largest = self._cluster.nodes_of(one.job.kinds).largest
        if target <= len(one.own) and nodes <= fewest_nodes(len(one.own), largest):
            return
        held_until_s = one.status.since_s + self._policy.hold_s
        if self._state.now_s < held_until_s:
            self._wake_s = min(self._wake_s, held_until_s)
            return
        devices = self._best(one, target)
        if devices is None or {*devices} == {*one.own}:
            return
        now_s = one.speed.run_s((len(one.own), nodes))
        then_s = one.speed.run_s((len(devices), nodes_of(devices, self._cluster)))
        if not then_s * (1 + self._policy.gain) <= now_s:
            return
        self._idle.take(sorted({*devices} - {*one.own}))
        self._idle.give(sorted({*one.own} - {*devices}))
        resize = Resize(one.job.job_id, self._allocations(devices))
        self._placed.append((one, resize, len({*devices} - {*one.own})))

    def _best(self, one: Contender, target: int) -> list[int] | None:
        """Return the fastest of the placements that are possible now, with at most ``target``."""
        allowed = self._cluster.nodes_of(one.job.kinds).bits
        best: tuple[float, int] = (math.inf, 0)
        found: list[int] | None = None
        for gpus in range(target, one.job.fewest_gpus - 1, -1):
            devices = choose_devices(gpus, one.own, self._idle, self._cluster, allowed)
            if devices is None:
                continue
            cost = one.speed.run_s((gpus, nodes_of(devices, self._cluster))), gpus
            if found is None or cost < best:
                best, found = cost, devices
        return found

    def _without_overtaking(self) -> list[Action]:
        """Return starts and growths, best-effort ones only if they delay no waiting urgent job."""
        starting = {one.job.job_id for one, _, _ in self._placed if not one.own}
        waiting = [
            *(job for job in self._state.latency_sensitive.values() if job.job_id not in starting),
            *(
                one.job
                for one in self._in_order
                if one.job.job_id in self._evicted and one.job.latency_sensitive
            ),
        ]
        usable = self._idle.count + sum(
            new for one, _, new in self._placed if not one.job.latency_sensitive
        )
        blocked = any(gang_size(job, self._cluster) <= usable for job in waiting)
        return [
            action for one, action, _ in self._placed if one.job.latency_sensitive or not blocked
        ]

    def _allocations(self, devices: Sequence[int]) -> tuple[Allocation, ...]:
        full = self._cluster.full_allocations
        return tuple(full[device] for device in sorted(devices))


def _first_density(demand: Demand) -> float:
    return demand.increments[0].density / max(demand.left, 1e-6) if demand.increments else 0.0
