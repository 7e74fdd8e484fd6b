"""Gang scheduling by interference and communication cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np

from presage.errors import ConfigError
from presage.schedulers.core.action import Preempt, Reserve, Start, Wake
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Demand, Policy, PolicyNeeds
from presage.schedulers.core.queue import Key, priority_key
from presage.schedulers.core.state import State
from presage.schedulers.policies.gang.candidates import candidates_of, needs_of
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.gang.optimisers.frog_leaping import FrogLeaping
from presage.schedulers.policies.gang.optimisers.greedy import Greedy
from presage.schedulers.policies.gang.optimisers.optimiser import Optimiser
from presage.schedulers.policies.gang.optimisers.subtrees import Subtrees
from presage.schedulers.policies.gang.optimisers.swaps import Swaps
from presage.schedulers.policies.gang.optimisers.tree_optimum import TreeOptimum
from presage.schedulers.policies.gang.planner import Planner
from presage.schedulers.policies.gang.problem import Reduce, Weights
from presage.schedulers.policies.gang.switch_sharing import SwitchSharing
from presage.schedulers.policies.gang.unplaceable import Unplaceable
from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.policies.priority_guard import PriorityGuard
from presage.system.text.known_names import check_known

_MOST_DOUBLINGS = 30
OPTIMISERS: Mapping[str, Optimiser] = {
    "tree": TreeOptimum(),
    "frog-leaping": FrogLeaping(),
    "as-published": FrogLeaping.as_published(),
    "subtrees": Subtrees(),
    "swaps": Swaps(),
    "greedy": Greedy(),
}


class Gang(Policy):
    """Policy that places whole gangs by predicted interference and communication cost.

    Gangs are served by priority, then by waiting time; gangs that do not fit are skipped
    (requirements A2 to A4). The first skipped gang reserves the devices that are free for it (A5).
    If its quorum is there before the reservation expires, the gang starts; otherwise the devices
    are released, and the gang waits for ``backoff_s`` and then queues behind jobs that arrived
    before it failed. Each reservation may last twice as long as the one before, so that a large
    gang does not starve. More urgent jobs do not wait for reserved devices. Where the topology has
    switches with in-network computing, the communication cost counts their free slots.

    Parameters
    ----------
    alpha, beta, reduce
        See :class:`~presage.schedulers.policies.gang.problem.Weights`.
    optimiser : str
        Key of ``OPTIMISERS``.
    near : str
        Level of the topology: a gang that fits into one of its vertices waits for one. At the
        outermost level no gang waits for a better place.
    expiry_s : float
        Duration of a gang's first reservation; at 0 there are no reservations, and a large gang may
        starve while others keep arriving.
    most_slowdown, most_members, overcommit : float
        As in the policy ``packing``.

    Attributes
    ----------
    limits : Limits
        Limits of co-location on a device.
    planner : Planner
        Chooses the devices of a gang.
    expiry_s, backoff_s : float
        The parameters of the same names.

    References
    ----------
    CN114253693A (requirements A to D).
    """

    needs = PolicyNeeds(
        allocation="predicted", most_slowdown=1.5, most_members=2, preempts=True, plans_gangs=True
    )

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        reduce: Reduce = "mean",
        optimiser: str = "tree",
        near: str = "node",
        expiry_s: float = 600.0,
        backoff_s: float = 60.0,
        most_slowdown: float = 1.5,
        most_members: int = 2,
        overcommit: float = 1.0,
    ) -> None:
        check_known([optimiser], OPTIMISERS, "gang: optimiser ")
        check_known([reduce], ("mean", "max"), "gang: reduce ")
        for name, value in (
            ("alpha", alpha), ("beta", beta), ("expiry_s", expiry_s), ("backoff_s", backoff_s),
        ):  # fmt: skip
            if not 0 <= value < math.inf:
                raise ConfigError(f"gang: {name}={value:g}, must be a finite number >= 0")
        if alpha == beta == 0:
            raise ConfigError("gang: alpha=0 and beta=0 make all places equal; set one of them")
        self.planner = Planner(Weights(alpha, beta, reduce), OPTIMISERS[optimiser], near)
        self.expiry_s, self.backoff_s = expiry_s, backoff_s
        self.limits = Limits(most_slowdown, most_members, overcommit)
        self.limits.check("gang")
        self.needs = replace(Gang.needs, **self.limits._asdict())

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then arrival or the last failed attempt, then name (A2)."""
        return (-job.priority, max(job.submit_s, status.rolled_back_s), job.job_id)

    def decide(
        self, state: State, forecasts: Forecasts, rng: Random
    ) -> list[Preempt | Reserve | Start | Wake]:
        """Start all gangs that fit; reserve devices for the first that does not."""
        if not len(state.pending) and not state.reserved:
            return []
        round_ = _Round(self, state, forecasts, np.random.default_rng(rng.getrandbits(64)))
        holding = [(state.job(job_id), held) for job_id, held in state.reserved.items()]
        holding.sort(key=lambda held: self._rank(held[0], held[1], forecasts), reverse=True)
        cursor = state.pending.cursor()
        for job in cursor:
            status = state.status(job.job_id)
            place = self._rank(job, status, forecasts) if holding else ()
            while holding and self._rank(holding[-1][0], holding[-1][1], forecasts) < place:
                round_.serve(*holding.pop())
            again_s = status.rolled_back_s + self.backoff_s
            # After a clock was set back the failure may lie in the future.
            if status.rollbacks and status.rolled_back_s <= state.now_s < again_s:
                round_.actions.append(Wake(again_s))
                round_.guard.add(job)
            elif round_.serve(job, status):
                continue
            elif holding and priority_key(job) < priority_key(holding[0][0]):
                if round_.serve_instead(job, status, *holding[0]):
                    holding.pop(0)
            elif not status.overflows:
                cursor.skip()
        while holding:
            round_.serve(*holding.pop())
        return round_.actions

    def _rank(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return the place of a job in the queue: its class, then its key."""
        return (not job.latency_sensitive, *self.key(job, status, forecasts))

    def demand(
        self, job: Job, kind: str, cluster: Cluster, forecasts: Forecasts, *, overflows: int = 0
    ) -> Demand:
        """Return the predicted need of a gang's member; an exclusive device after an overflow."""
        if overflows:
            return Demand(FULL_DEVICE_MILLI, cluster.memory_of[kind])
        return Demand(*self.limits.needs(forecasts.prediction(job, kind)))

    def until_s(self, status: JobStatus, state: State) -> float:
        """Return when a reservation expires; an existing one keeps its time."""
        if status.allocations:
            return status.until_s
        return state.now_s + self.reservation_s(status.rollbacks)

    def reservation_s(self, rollbacks: int) -> float:
        """Return how long a gang may hold devices; the time doubles with each rollback."""
        return self.expiry_s * 2.0 ** min(rollbacks, _MOST_DOUBLINGS)


class _Round:
    """One decision: gangs are served in order, each after the allocations of those before it.

    Attributes
    ----------
    actions : list of Action
        Actions decided so far.
    guard : PriorityGuard
        Jobs that were not served.
    """

    def __init__(
        self, policy: Gang, state: State, forecasts: Forecasts, draws: np.random.Generator
    ) -> None:
        self._policy, self._state, self._forecasts, self._draws = policy, state, forecasts, draws
        self.actions: list[Preempt | Reserve | Start | Wake] = []
        self.guard = PriorityGuard(state)
        self._tenants, self._no_capacity = Tenants(state), Unplaceable()
        self._holder = next(iter(state.reserved), None)  # gang that holds too few devices
        self._freed: tuple[Allocation, ...] = ()  # devices that gangs held before

    def serve(self, job: Job, status: JobStatus) -> bool:
        """Start a gang, or reserve devices for it; return whether it got any."""
        state, tenants, limits = self._state, self._tenants, self._policy.limits
        needs = needs_of(
            job, state.cluster, self._forecasts, limits, exclusive=status.overflows > 0
        )
        may_hold = self._policy.expiry_s > 0 and self._holder in (None, job.job_id)
        if status.allocations:
            tenants.remove(job.job_id)
            self._no_capacity = Unplaceable()
        elif not may_hold and self._no_capacity.for_more_than(job.fewest_gpus, needs):
            self.guard.add(job)
            return False
        found = candidates_of(job, needs, state.cluster, tenants, self._forecasts, limits)
        if found.with_capacity < job.fewest_gpus:
            self._no_capacity.add(job.fewest_gpus, needs)
        sharing = SwitchSharing(state.cluster, tenants.gangs)
        allocations = self._policy.planner.plan(job, found, state, sharing, self._draws)
        starts = len(allocations) >= job.fewest_gpus
        new = tuple(
            allocation for allocation in allocations if allocation not in status.allocations
        )
        back = tuple(
            allocation for allocation in status.allocations if allocation not in allocations
        )
        if not (starts or (allocations and may_hold)) or self.guard.blocks(
            job, new, (*self._freed, *back)
        ):
            self.guard.add(job)
            tenants.add(job, status.allocations)
            return False
        tenants.add(job, allocations)
        self._freed += back
        self._act(job, status, allocations, starts=starts)
        return True

    def _act(
        self, job: Job, status: JobStatus, allocations: tuple[Allocation, ...], *, starts: bool
    ) -> None:
        """Start a gang, or reserve its devices."""
        if starts:
            self.actions.append(Start(job.job_id, allocations))
            self._holder = None if self._holder == job.job_id else self._holder
        else:
            self._holder = job.job_id
            if allocations != status.allocations:
                until_s = self._policy.until_s(status, self._state)
                self.actions.append(Reserve(job.job_id, allocations, until_s))

    def serve_instead(self, job: Job, status: JobStatus, holder: Job, held: JobStatus) -> bool:
        """Serve a job with the reserved devices of a less urgent one; return whether it fits."""
        before = self._no_capacity, self._freed, self._holder
        self._no_capacity, self._freed, self._holder = (
            Unplaceable(),
            (*self._freed, *held.allocations),
            None,
        )
        self._tenants.remove(holder.job_id)
        self.actions.append(Preempt(holder.job_id))
        if self.serve(job, status):
            self.guard.add(holder)
            return True
        self.actions.pop()
        self._tenants.add(holder, held.allocations)
        self._no_capacity, self._freed, self._holder = before
        return False
