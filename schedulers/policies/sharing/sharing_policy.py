"""GPU sharing with SLOs: the controller and the node agents of a live cluster as one policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from presage.errors import ConfigError
from presage.schedulers.core.action import Action, Start, Wake
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.free_capacity import FreeCapacity
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import AgentSettings, Policy, PolicyNeeds
from presage.schedulers.core.state import State
from presage.schedulers.policies.node_draining import nearest_nodes
from presage.schedulers.policies.priority_guard import PriorityGuard
from presage.schedulers.policies.sharing.adjustment import (
    PassedChecks,
    Rebalancing,
    capacity_without_paused,
)
from presage.schedulers.policies.sharing.best_effort import BestEffortJobs
from presage.schedulers.policies.sharing.device_choice import choose_device
from presage.schedulers.policies.sharing.needs import Needs
from presage.schedulers.policies.sharing.node_choice import choose_node, most_free
from presage.schedulers.policies.sharing.reclaim import Release, release
from presage.schedulers.policies.sharing.sharing_settings import Settings
from presage.schedulers.policies.sharing.workload_cache import WorkloadCache

TIES = ("first", "random")
MAX_CACHED = 10_000  # workload keys with cached needs
BREADTH = 64  # devices that are considered for reclaiming capacity


class Sharing(Policy):
    """Policy that co-locates jobs by predicted needs and protects SLOs of latency-sensitive jobs.

    Jobs start by arrival where the most predicted capacity is free. Allocations are the median of
    compute and an upper bound of memory. For a latency-sensitive job that fits nowhere, best-effort
    jobs are shrunk or evicted. Each ``check_s`` a latency-sensitive job whose SLO is violated gets
    more compute. Gangs and jobs that ran out of memory get exclusive devices; nodes are drained for
    the first of them that waits.

    Parameters
    ----------
    step_milli, least_milli, check_s, overcommit, home_s, ageing_s, reserve
        See :class:`presage.schedulers.policies.sharing.sharing_settings.Settings`.
    ties : str
        Choice among equally good nodes: "first" or "random".

    References
    ----------
    Requirements C1 to C7 and N1 to N9.
    """

    needs = PolicyNeeds(
        allocation="predicted", respects_memory=True, preempts=True, resizes=True, home_s=60.0
    )

    def __init__(
        self,
        step_milli: int = 100,
        least_milli: int = 100,
        check_s: float = 10.0,
        overcommit: float = 1.0,
        home_s: float = 60.0,
        ageing_s: float = math.inf,
        reserve: float = 0.5,
        ties: str = "first",
    ) -> None:
        if ties not in TIES:
            raise ConfigError(f"sharing: ties={ties!r}, must be one of {', '.join(TIES)}")
        self.settings = Settings(
            step_milli, least_milli, check_s, overcommit, home_s, ageing_s, reserve
        ).check()
        self.needs = replace(Sharing.needs, overcommit=overcommit, ageing_s=ageing_s, home_s=home_s)
        self._at_random = ties == "random"
        self._rebalances = True
        self._on_node = False
        self._workload_keys: WorkloadCache | None = None  # of one cluster's forecasts
        self._passed: PassedChecks | None = None  # as above

    @property
    def agent_settings(self) -> AgentSettings:
        """Settings by which node agents rebalance running jobs (N3 to N7)."""
        own = self.settings
        return AgentSettings(
            own.step_milli, own.least_milli, own.check_s, own.overcommit, own.reserve
        )

    def controller_policy(self) -> Sharing:
        """Return a policy that leaves running jobs to the agents of a live cluster (N3 to N7)."""
        other = copy(self)
        other._rebalances = False
        return other

    def agent_policy(self) -> Sharing:
        """Return a policy for the devices of a single node, of any kinds.

        An agent has forecasts for each job separately, so no two jobs share a workload key.
        """
        other = copy(self)
        other._on_node = True
        return other

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """Rebalance running jobs if a check is due, then start pending jobs."""
        capacity = capacity_without_paused(state)
        tenants = BestEffortJobs(state, capacity, self.settings.least_milli)
        check_s = self.settings.check_s
        check_number = round(state.now_s / check_s)
        actions: list[Action] = []
        again = False
        if self._rebalances and state.now_s == check_number * check_s:
            passed = self._current_checks(forecasts, state.now_s)
            rebalancing = Rebalancing(state, forecasts, capacity, tenants, self.settings, passed)
            actions += rebalancing.run()
            again = rebalancing.has_shrunk_jobs or rebalancing.has_sensitive_jobs
        if len(state.pending):
            ties = rng if self._at_random else None
            workload_keys = self._current_cache(state, forecasts)
            serving = _Serving(
                state,
                forecasts,
                capacity,
                tenants,
                self.settings,
                ties,
                workload_keys,
                self._on_node,
            )
            actions += serving.run()
            again |= serving.needs_check
            actions += [Wake(serving.wake_s)] if serving.wake_s < math.inf else []
        if again and self._rebalances:
            next_check = math.floor(state.now_s / check_s) + 1
            actions.append(Wake(next_check * check_s))
        return actions

    def _current_checks(self, forecasts: Forecasts, now_s: float) -> PassedChecks | None:
        """Return the checks that need not be repeated; None on a node, which has few jobs."""
        if self._on_node:
            return None
        if self._passed is None or not self._passed.are_for(forecasts, now_s):
            self._passed = PassedChecks(forecasts)
        return self._passed

    def _current_cache(self, state: State, forecasts: Forecasts) -> WorkloadCache:
        """Return the cache; on a node it is new, as no two jobs share a workload key there."""
        devices, cache = state.cluster.columns, self._workload_keys
        if (
            cache is None
            or self._on_node
            or not cache.is_for(devices, forecasts)
            or len(cache) > MAX_CACHED
        ):
            cache = self._workload_keys = WorkloadCache(
                devices, forecasts, self.settings.overcommit
            )
        return cache


class _Serving:
    """Placement of pending jobs in queue order.

    Attributes
    ----------
    needs_check : bool
        Whether a job runs now whose SLO has to be checked.
    wake_s : float
        Next time at which a pending job may start elsewhere or precede others; infinite if none.
    """

    def __init__(
        self,
        state: State,
        forecasts: Forecasts,
        capacity: FreeCapacity,
        tenants: BestEffortJobs,
        settings: Settings,
        ties: Random | None,
        workload_keys: WorkloadCache,
        on_node: bool,
    ) -> None:
        self._state, self._forecasts, self._capacity = state, forecasts, capacity
        self._tenants, self._settings, self._ties = tenants, settings, ties
        self._idle = state.idle()
        self._devices = state.cluster.columns
        self._guard = PriorityGuard(state)
        self._drained = np.zeros(state.cluster.devices, bool)  # for a waiting gang
        self._none_drained = np.zeros(state.cluster.devices, bool)
        self._drained_for_all = False  # whether latency-sensitive jobs must not use them
        self._head: Job | None = None
        self._taken: set[int] = set()  # devices on which this decision started jobs
        self._workload_keys, self._on_node = workload_keys, on_node
        self.needs_check = False
        self.wake_s = math.inf
        self.actions: list[Action] = []

    def run(self) -> list[Action]:
        """Return the actions, in order."""
        for cache in self._workload_keys.unfit.values():
            cache.begin(self._capacity)
        aged = self._aged()
        if aged is not None and not self._serve(aged):
            self._drain_device_for(aged)
        cursor = self._state.pending.cursor()
        unfit: set[Hashable] = set()
        for job in cursor:
            if job is aged:
                continue
            if self._cache_key(job) not in unfit:
                if not self._serve(job):
                    self._guard.add(job)
                    if self._is_interchangeable(job):
                        unfit.add(job.workload_key)
                        cursor.skip()
            elif self._is_interchangeable(job):
                cursor.skip()
            elif not self._serve(job):
                self._guard.add(job)
        for urgent, cache in self._workload_keys.unfit.items():
            cache.end(self._capacity, self._drained_for(urgent=urgent))
        return self.actions

    def _cache_key(self, job: Job) -> Hashable:
        return job.job_id if self._on_node else job.workload_key

    def _is_interchangeable(self, job: Job) -> bool:
        """Return whether a job fits exactly where others with its workload key do."""
        if self._on_node:
            return False
        status = self._state.status(job.job_id)
        return not status.overflows and self._home(job, status) is None

    def _aged(self) -> Job | None:
        """Return the first best-effort job, if it has waited for longer than the ageing (C6)."""
        if self._settings.ageing_s == math.inf:
            return None
        first = next((job for job in self._state.pending if not job.latency_sensitive), None)
        if first is None:
            return None
        ages_s = self._state.status(first.job_id).since_s + self._settings.ageing_s
        if self._state.now_s >= ages_s:
            return first
        self.wake_s = min(self.wake_s, ages_s)
        return None

    def _serve(self, job: Job) -> bool:
        """Start a job if it fits or capacity can be reclaimed for it; return whether."""
        status = self._state.status(job.job_id)
        if job.gpus > 1 or status.overflows:
            return self._start_exclusive(job)
        needs = self._needs(job)
        home = self._home(job, status)
        device = self._device(job, needs) if home is None else self._at_home(needs, home)
        if device is None:
            return job.latency_sensitive and self._reclaim_for(job, needs)
        if self._start(job, (self._allocation(needs, device),)):
            return True
        # A skipped latency-sensitive job may request these kinds only; try the others.
        others = self._devices.kind != self._devices.kind[device]
        device = self._device(job, needs, others) if home is None else None
        return device is not None and self._start(job, (self._allocation(needs, device),))

    def _device(self, job: Job, needs: Needs, among: NDArray[np.bool_] | None = None) -> int | None:
        """Return the device of the chosen node; None if the job fits nowhere."""
        unfit = self._workload_keys.unfit[job.latency_sensitive]
        drained = self._drained_for(urgent=job.latency_sensitive)
        fits = unfit.fitting(self._cache_key(job), needs, self._capacity, drained)
        if among is not None:
            fits = fits[among[fits]]
        if not self._on_node:
            node = choose_node(fits, self._capacity, self._devices, self._ties)
            fits = fits[self._devices.node[fits] == node]
        fitting: list[int] = fits.tolist()
        if not fitting:
            return None
        return choose_device(job, fitting, self._state, self._capacity, self._forecasts)

    def _drain_device_for(self, aged: Job) -> None:
        """Drain the device that is closest to having what the aged job needs.

        That is the device with the largest fraction of it free, of compute or memory, whichever is
        smaller.
        """
        self._drained_for_all = True
        if aged.gpus > 1 or self._drained.any():  # a gang's nodes are drained already
            return
        needs, kind = self._needs(aged), self._devices.kind
        compute = self._capacity.compute_milli / np.array(needs.compute_milli)[kind]
        memory = self._capacity.memory_bytes / np.array(needs.memory_bytes)[kind]
        allowed = self._devices.has_kind(aged.kinds) if aged.kinds else np.ones_like(self._drained)
        allowed &= self._devices.memory_bytes >= np.array(needs.memory_bytes)[kind]
        if allowed.any():
            self._drained[np.where(allowed, np.minimum(compute, memory), -1.0).argmax()] = True

    def _drained_for(self, *, urgent: bool) -> NDArray[np.bool_]:
        """Return a mask of the drained devices, which a job must not use."""
        return self._none_drained if urgent and not self._drained_for_all else self._drained

    def _reclaim(self, devices: Iterable[int], make: Callable[[], Iterable[Action]]) -> None:
        """Add actions that free capacity of devices, and note it."""
        capacity = self._capacity
        before = {
            device: (int(capacity.compute_milli[device]), int(capacity.memory_bytes[device]))
            for device in devices
        }
        self.actions += make()
        for cache in self._workload_keys.unfit.values():
            cache.grow(before)

    def _devices_of(self, job_ids: Iterable[str]) -> set[int]:
        statuses = map(self._state.status, job_ids)
        return {allocation.device for status in statuses for allocation in status.allocations}

    def _at_home(self, needs: Needs, home: int) -> int | None:
        """Return the device that a job was on, if it fits there again."""
        allocation = self._allocation(needs, home)
        capacity = self._capacity
        if self._drained[home] or capacity.compute_milli[home] < allocation.compute_milli:
            return None
        return home if capacity.memory_bytes[home] >= allocation.memory_bytes else None

    def _home(self, job: Job, status: JobStatus) -> int | None:
        """Return the only device that an evicted best-effort job may start on for now (N6, N9)."""
        if job.latency_sensitive or len(status.previous_devices) != 1 or status.overflows:
            return None
        leaves_s = status.since_s + self._settings.home_s
        down = self._state.is_down(status.previous_devices[0])
        if down or self._state.now_s >= leaves_s:
            return None
        self.wake_s = min(self.wake_s, leaves_s)
        return status.previous_devices[0]

    def _needs(self, job: Job) -> Needs:
        return self._workload_keys.needs(self._cache_key(job), job)

    def _reclaim_for(self, job: Job, needs: Needs) -> bool:
        """Start a latency-sensitive job on capacity reclaimed from best-effort jobs (C4)."""
        allocated, capacity = self._tenants.allocated, self._capacity
        reclaimable = FreeCapacity(
            capacity.compute_milli + allocated.compute_milli,
            capacity.memory_bytes + allocated.memory_bytes,
        )
        candidates = np.flatnonzero(
            needs.fit(reclaimable, self._devices) & ~self._drained_for(urgent=True)
        )
        found: list[tuple[tuple[int, float, int], int, Release]] = []
        for device in most_free(candidates, capacity.compute_milli):
            allocation = self._allocation(needs, device)
            released = release(
                allocation.compute_milli - int(capacity.compute_milli[device]),
                allocation.memory_bytes - int(capacity.memory_bytes[device]),
                self._tenants.on_device(device),
            )
            if released is not None:
                found.append((released.cost, device, released))
                if len(found) == BREADTH:
                    break
        if not found:
            return False
        _, device, released = min(found)
        touched = {device, *self._devices_of(released.evicted)}
        self._reclaim(touched, lambda: self._tenants.carry_out(released, device))
        self.needs_check = True
        return self._start(job, (self._allocation(needs, device),))

    def _start_exclusive(self, job: Job) -> bool:
        """Start a job on exclusive devices; return whether it fits."""
        if self._head is not None and (self._drained_for_all or not job.latency_sensitive):
            return False
        allocations = place_consolidated(job, self._state.cluster, self._idle.copy())
        if allocations is not None:
            return self._start(job, allocations)
        if job.latency_sensitive and self._evict_for_gang(job):
            return True
        if self._head is None:
            self._head = job
            self._drained_for_all |= job.latency_sensitive  # drained for all jobs from now on
            for node in nearest_nodes(job, self._state, self._idle):
                self._drained[self._state.cluster.devices_of(node)] = True
        return False

    def _evict_for_gang(self, job: Job) -> bool:
        """Start a latency-sensitive gang on devices that only best-effort jobs hold (C4)."""
        state, freed = self._state, self._idle.copy()
        held = {
            device: job_ids
            for device in range(state.cluster.devices)
            if (job_ids := state.jobs_on(device))
            and device not in self._taken
            and [tenant.job_id for tenant in self._tenants.on_device(device)] == list(job_ids)
        }
        freed.give([device for device in held if not freed.is_idle(device)])
        allocations = place_consolidated(job, state.cluster, freed)
        if allocations is None:
            return False
        evicted = dict.fromkeys(
            job_id for allocation in allocations for job_id in held.get(allocation.device, ())
        )
        self._reclaim(self._devices_of(evicted), lambda: map(self._tenants.evict, evicted))
        return self._start(job, allocations)

    def _start(self, job: Job, allocations: tuple[Allocation, ...]) -> bool:
        if self._guard.blocks(job, allocations):
            return False
        self._capacity.take(allocations)
        self._taken.update(allocation.device for allocation in allocations)
        self._idle.take(
            [
                allocation.device
                for allocation in allocations
                if self._idle.is_idle(allocation.device)
            ]
        )
        self.needs_check |= job.latency_sensitive
        self.actions.append(Start(job.job_id, allocations))
        return True

    def _allocation(self, needs: Needs, device: int) -> Allocation:
        kind = self._devices.kind[device]
        return Allocation(device, needs.compute_milli[kind], needs.memory_bytes[kind])
