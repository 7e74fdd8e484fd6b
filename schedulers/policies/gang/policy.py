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
from presage.schedulers.policies.gang.candidates import Candidates, candidates_of, needs_of
from presage.schedulers.policies.gang.distances import Distances
from presage.schedulers.policies.gang.fewest_nodes import kept_near
from presage.schedulers.policies.gang.frog_leaping import FrogLeaping
from presage.schedulers.policies.gang.greedy import Greedy
from presage.schedulers.policies.gang.occupancy import Tenants
from presage.schedulers.policies.gang.optimiser import Optimiser
from presage.schedulers.policies.gang.problem import Problem, Reduce, Weights
from presage.schedulers.policies.gang.subtrees import Subtrees
from presage.schedulers.policies.gang.swaps import Swaps
from presage.schedulers.policies.gang.tree_optimum import TreeOptimum
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
    gang does not starve. More urgent jobs do not wait for reserved devices.

    Parameters
    ----------
    alpha, beta, reduce
        See :class:`~presage.schedulers.policies.gang.problem.Weights`.
    optimiser : str
        Of ``OPTIMISERS``.
    near : str
        Level of the topology: a gang that fits into one of its vertices waits for one. At the
        outermost level no gang waits for a better place.
    expiry_s : float
        Duration of a gang's first reservation; at 0 there are no reservations, and a large gang may
        starve while others keep arriving.
    most_slowdown, most_members, overcommit : float
        As of ``packing``.

    Attributes
    ----------
    limits : Limits
        Limits of co-location on a device.
    expiry_s, backoff_s : float
        As given.

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
            raise ConfigError("gang: alpha=0 and beta=0, every place is as good; set one of them")
        self._weights = Weights(alpha, beta, reduce)
        self._optimiser, self._near = OPTIMISERS[optimiser], near
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
        keeping = [(state.job(job_id), held) for job_id, held in state.reserved.items()]
        keeping.sort(key=lambda held: self._rank(held[0], held[1], forecasts), reverse=True)
        cursor = state.pending.cursor()
        for job in cursor:
            status = state.status(job.job_id)
            place = self._rank(job, status, forecasts) if keeping else ()
            while keeping and self._rank(keeping[-1][0], keeping[-1][1], forecasts) < place:
                round_.serve(*keeping.pop())
            again_s = status.rolled_back_s + self.backoff_s
            # After a clock was set back the failure may lie in the future.
            if status.rollbacks and status.rolled_back_s <= state.now_s < again_s:
                round_.actions.append(Wake(again_s))
                round_.guard.add(job)
            elif round_.serve(job, status):
                continue
            elif keeping and priority_key(job) < priority_key(keeping[0][0]):
                if round_.serve_instead(job, status, *keeping[0]):
                    keeping.pop(0)
            elif not status.overflows:
                cursor.skip()
        while keeping:
            round_.serve(*keeping.pop())
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

    def plan(
        self, job: Job, found: Candidates, state: State, draws: np.random.Generator
    ) -> tuple[Allocation, ...]:
        """Return allocations of the gang, or of as many of its members as fit."""
        best, least = np.zeros(0, np.int64), math.inf
        size = job.gpus_per_task
        nearest = found.devices[:, 0]  # of each task: those that it has are near each other
        for some in kept_near(job, nearest, state.cluster, self._near, down=state.down):
            members = min(job.gpus // size, len(some))
            if members * size < job.fewest_gpus:
                best = some if members > len(best) else best
                continue
            problem = Problem(
                np.broadcast_to(found.degradation[some], (members, len(some))),
                Distances(state.cluster.topology, nearest[some]),
                self._weights,
            )
            places = np.arange(members)
            if members < len(some):
                places = self._optimiser.plan(problem, draws)
            cost = float(problem.costs(places[None])[0])
            if members > len(best) or (members == len(best) and cost < least):
                best, least = some[places], cost
        return found.allocations(best, state.cluster)

    def until_s(self, status: JobStatus, state: State) -> float:
        """Return when a reservation expires; a held one keeps its time."""
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
        self._keeper = next(iter(state.reserved), None)  # whose gang keeps too few devices
        self._freed: tuple[Allocation, ...] = ()  # what gangs kept, and do no more

    def serve(self, job: Job, status: JobStatus) -> bool:
        """Start a gang, or reserve devices for it; return whether it got any."""
        state, tenants, limits = self._state, self._tenants, self._policy.limits
        needs = needs_of(job, state.cluster, self._forecasts, limits, alone=status.overflows > 0)
        may_keep = self._policy.expiry_s > 0 and self._keeper in (None, job.job_id)
        if status.allocations:
            tenants.leave(job.job_id)
            self._no_capacity = Unplaceable()
        elif not may_keep and self._no_capacity.for_more_than(job.fewest_gpus, needs):
            self.guard.add(job)
            return False
        found = candidates_of(job, needs, state.cluster, tenants, self._forecasts, limits)
        if found.with_capacity < job.fewest_gpus:
            self._no_capacity.add(job.fewest_gpus, needs)
        allocations = self._policy.plan(job, found, state, self._draws)
        starts = len(allocations) >= job.fewest_gpus
        new = tuple(
            allocation for allocation in allocations if allocation not in status.allocations
        )
        back = tuple(
            allocation for allocation in status.allocations if allocation not in allocations
        )
        if not (starts or (allocations and may_keep)) or self.guard.blocks(
            job, new, (*self._freed, *back)
        ):
            self.guard.add(job)
            tenants.come(job, status.allocations)
            return False
        tenants.come(job, allocations)
        self._freed += back
        self._act(job, status, allocations, starts=starts)
        return True

    def _act(
        self, job: Job, status: JobStatus, allocations: tuple[Allocation, ...], *, starts: bool
    ) -> None:
        """Start a gang, or reserve the devices that it keeps."""
        if starts:
            self.actions.append(Start(job.job_id, allocations))
            self._keeper = None if self._keeper == job.job_id else self._keeper
        else:
            self._keeper = job.job_id
            if allocations != status.allocations:
                until_s = self._policy.until_s(status, self._state)
                self.actions.append(Reserve(job.job_id, allocations, until_s))

    def serve_instead(self, job: Job, status: JobStatus, less: Job, held: JobStatus) -> bool:
        """Serve a job with the reserved devices of a less urgent one; return whether it fits."""
        before = self._no_capacity, self._freed, self._keeper
        self._no_capacity, self._freed, self._keeper = (
            Unplaceable(),
            (*self._freed, *held.allocations),
            None,
        )
        self._tenants.leave(less.job_id)
        self.actions.append(Preempt(less.job_id))
        if self.serve(job, status):
            self.guard.add(less)
            return True
        self.actions.pop()
        self._tenants.come(less, held.allocations)
        self._no_capacity, self._freed, self._keeper = before
        return False
