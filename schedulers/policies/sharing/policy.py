"""GPU sharing with SLOs: the controller and the node agents of a live cluster as one policy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
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
from presage.schedulers.policies.placement import nearest_nodes
from presage.schedulers.policies.priority_guard import PriorityGuard
from presage.schedulers.policies.sharing.adjustment import Rebalancing, not_on_hold
from presage.schedulers.policies.sharing.best_effort import Tenants
from presage.schedulers.policies.sharing.demand import Needs
from presage.schedulers.policies.sharing.device_choice import choose_device
from presage.schedulers.policies.sharing.node_choice import choose_node
from presage.schedulers.policies.sharing.reclaim import Release, release
from presage.schedulers.policies.sharing.sharing_settings import Settings
from presage.schedulers.policies.sharing.workload_cache import WorkloadCache

TIES = ("first", "random")
MOST_KNOWN = 10_000  # workload keys with cached needs
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
        self._adjusts = True
        self._on_node = False
        self._workload_keys: WorkloadCache | None = None  # of one cluster's forecasts

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
        other._adjusts = False
        return other

    def agent_policy(self) -> Sharing:
        """Return a policy for the devices of a single node, of whatever kinds.

        An agent has forecasts for each job separately, so no two jobs share a workload key.
        """
        other = copy(self)
        other._on_node = True
        return other

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """Rebalance running jobs if a check is due, then start pending jobs."""
        capacity = not_on_hold(state)
        tenants = Tenants(state, capacity, self.settings.least_milli)
        check_s = self.settings.check_s
        look = round(state.now_s / check_s)
        actions: list[Action] = []
        again = False
        if self._adjusts and state.now_s == look * check_s:
            adjustment = Rebalancing(state, forecasts, capacity, tenants, self.settings)
            actions += adjustment.run()
            again = adjustment.hungry or bool(adjustment.late)
        if len(state.pending):
            ties = rng if self._at_random else None
            workload_keys = self._known(state, forecasts)
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
            again |= serving.watch
            actions += [Wake(serving.wake_s)] if serving.wake_s < math.inf else []
        if again and self._adjusts:
            next_look = math.floor(state.now_s / check_s) + 1
            actions.append(Wake(next_look * check_s))
        return actions

    def _known(self, state: State, forecasts: Forecasts) -> WorkloadCache:
        """Return the cache; on a node it is new, as no two jobs share a workload key there."""
        devices, known = state.cluster.columns, self._workload_keys
        if (
            known is None
            or self._on_node
            or not known.are_of(devices, forecasts)
            or len(known) > MOST_KNOWN
        ):
            known = self._workload_keys = WorkloadCache(
                devices, forecasts, self.settings.overcommit
            )
        return known


class _Serving:
    """Placement of pending jobs, in order.

    Attributes
    ----------
    watch : bool
        Whether there is a job now whose SLO has to be checked.
    wake_s : float
        When the first pending job may start elsewhere, or before others; infinite if none will.
    """

    def __init__(
        self,
        state: State,
        forecasts: Forecasts,
        capacity: FreeCapacity,
        tenants: Tenants,
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
        self._spared = np.zeros(state.cluster.devices, bool)  # for a gang that waits
        self._nothing = np.zeros(state.cluster.devices, bool)
        self._for_all = False  # also latency-sensitive jobs have nothing of them
        self._head: Job | None = None
        self._taken: set[int] = set()  # devices on which this decision started jobs
        self._workload_keys, self._on_node = workload_keys, on_node
        self.watch = False
        self.wake_s = math.inf
        self.actions: list[Action] = []

    def run(self) -> list[Action]:
        """Return the actions, in order."""
        for known in self._workload_keys.unfit.values():
            known.begin(self._capacity)
        aged = self._aged()
        if aged is not None and not self._serve(aged):
            self._wait_for(aged)
        cursor = self._state.pending.cursor()
        unfit: set[Hashable] = set()
        for job in cursor:
            if job is aged:
                continue
            if self._alike(job) not in unfit:
                if not self._serve(job):
                    self._guard.add(job)
                    if self._like_others(job):
                        unfit.add(job.workload_key)
                        cursor.skip()
            elif self._like_others(job):
                cursor.skip()
            elif not self._serve(job):
                self._guard.add(job)
        for urgent, known in self._workload_keys.unfit.items():
            known.end(self._capacity, self._kept_from(urgent=urgent))
        return self.actions

    def _alike(self, job: Job) -> Hashable:
        return job.job_id if self._on_node else job.workload_key

    def _like_others(self, job: Job) -> bool:
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
            return self._start_whole(job)
        needs = self._needs(job)
        home = self._home(job, status)
        device = self._device(job, needs) if home is None else self._at_home(needs, home)
        if device is None:
            return job.latency_sensitive and self._make_capacity(job, needs)
        if self._start(job, (self._allocation(needs, device),)):
            return True
        # The request of a skipped latency-sensitive job is for some kinds; try the others.
        others = self._devices.kind != self._devices.kind[device]
        device = self._device(job, needs, others) if home is None else None
        return device is not None and self._start(job, (self._allocation(needs, device),))

    def _device(self, job: Job, needs: Needs, among: NDArray[np.bool_] | None = None) -> int | None:
        """Return the device of the chosen node; None if the job fits nowhere."""
        unfit = self._workload_keys.unfit[job.latency_sensitive]
        kept = self._kept_from(urgent=job.latency_sensitive)
        fits = unfit.fitting(self._alike(job), needs, self._capacity, kept)
        if fits is None:
            return None
        if among is not None:
            fits &= among
        if self._on_node:
            there = np.flatnonzero(fits).tolist()
        else:
            node = choose_node(fits, self._capacity, self._devices, self._ties)
            of_node = () if node is None else self._state.cluster.devices_of(node)
            there = [device for device in of_node if fits[device]]
        if not there:
            return None
        return choose_device(job, there, self._state, self._capacity, self._forecasts)

    def _wait_for(self, aged: Job) -> None:
        """Drain the device that is closest to having what the aged job needs.

        That is the device with the largest fraction of it free, of compute or memory, whichever is
        smaller.
        """
        self._for_all = True
        if aged.gpus > 1 or self._spared.any():  # a gang's nodes are drained already
            return
        needs, kind = self._needs(aged), self._devices.kind
        compute = self._capacity.compute_milli / np.array(needs.compute_milli)[kind]
        memory = self._capacity.memory_bytes / np.array(needs.memory_bytes)[kind]
        allowed = self._devices.has_kind(aged.kinds) if aged.kinds else np.ones_like(self._spared)
        allowed &= self._devices.memory_bytes >= np.array(needs.memory_bytes)[kind]
        if allowed.any():
            self._spared[np.where(allowed, np.minimum(compute, memory), -1.0).argmax()] = True

    def _kept_from(self, *, urgent: bool) -> NDArray[np.bool_]:
        """Return the devices that are drained for a job that precedes others."""
        return self._nothing if urgent and not self._for_all else self._spared

    def _made_capacity(self, before: FreeCapacity) -> None:
        for known in self._workload_keys.unfit.values():
            known.grow(before, self._capacity)

    def _at_home(self, needs: Needs, home: int) -> int | None:
        """Return the device that a job was on, if it fits there again."""
        allocation = self._allocation(needs, home)
        capacity = self._capacity
        if self._spared[home] or capacity.compute_milli[home] < allocation.compute_milli:
            return None
        return home if capacity.memory_bytes[home] >= allocation.memory_bytes else None

    def _home(self, job: Job, status: JobStatus) -> int | None:
        """Return the only device that an evicted best-effort job may start on for now (N6, N9)."""
        if job.latency_sensitive or len(status.previous_devices) != 1 or status.overflows:
            return None
        leaves_s = status.since_s + self._settings.home_s
        down = self._state.cluster.node_of[status.previous_devices[0]] in self._state.down
        if down or self._state.now_s >= leaves_s:
            return None
        self.wake_s = min(self.wake_s, leaves_s)
        return status.previous_devices[0]

    def _needs(self, job: Job) -> Needs:
        return self._workload_keys.needs(self._alike(job), job)

    def _make_capacity(self, job: Job, needs: Needs) -> bool:
        """Start a latency-sensitive job on capacity reclaimed from best-effort jobs (C4)."""
        held, capacity = self._tenants.held, self._capacity
        together = FreeCapacity(
            capacity.compute_milli + held.compute_milli, capacity.memory_bytes + held.memory_bytes
        )
        could = np.flatnonzero(needs.fit(together, self._devices) & ~self._kept_from(urgent=True))
        could = could[np.argsort(-capacity.compute_milli[could], kind="stable")]
        found: list[tuple[tuple[int, float, int], int, Release]] = []
        for device in could.tolist():
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
        before = capacity.copy()
        self.actions += self._tenants.carry_out(released, device)
        self._made_capacity(before)
        self.watch = True
        return self._start(job, (self._allocation(needs, device),))

    def _start_whole(self, job: Job) -> bool:
        """Start a job on exclusive devices; return whether it fits."""
        if self._head is not None and (self._for_all or not job.latency_sensitive):
            return False
        allocations = place_consolidated(job, self._state.cluster, self._idle.copy())
        if allocations is not None:
            return self._start(job, allocations)
        if job.latency_sensitive and self._clear(job):
            return True
        if self._head is None:
            self._head = job
            self._for_all |= job.latency_sensitive  # devices that are kept from all jobs stay so
            for node in nearest_nodes(job, self._state, self._idle):
                self._spared[self._state.cluster.devices_of(node)] = True
        return False

    def _clear(self, job: Job) -> bool:
        """Start a latency-sensitive gang on devices that only best-effort jobs hold (C4)."""
        state, freed = self._state, self._idle.copy()
        held = {
            device: there
            for device in range(state.cluster.devices)
            if (there := state.jobs_on(device))
            and device not in self._taken
            and [one.job_id for one in self._tenants.on_device(device)] == list(there)
        }
        freed.give([device for device in held if not freed.is_idle(device)])
        allocations = place_consolidated(job, state.cluster, freed)
        if allocations is None:
            return False
        before = self._capacity.copy()
        for job_id in dict.fromkeys(
            job_id for allocation in allocations for job_id in held.get(allocation.device, ())
        ):
            self.actions.append(self._tenants.end(job_id))
        self._made_capacity(before)
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
        self.watch |= job.latency_sensitive
        self.actions.append(Start(job.job_id, allocations))
        return True

    def _allocation(self, needs: Needs, device: int) -> Allocation:
        kind = self._devices.kind[device]
        return Allocation(device, needs.compute_milli[kind], needs.memory_bytes[kind])
