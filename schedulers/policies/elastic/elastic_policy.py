"""Elastic scheduling: jobs shrink to admit others, and grow by predicted marginal speed-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from presage.errors import ConfigError
from presage.features.scaling.scaling_forecast import MOST_GROWTH
from presage.schedulers.core.action import Action
from presage.schedulers.core.capacity.resource_requests import gang_size
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy, PolicyNeeds
from presage.schedulers.core.queue import Key
from presage.schedulers.core.speedup import fewest_nodes
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.co_locations import SharingLimits
from presage.schedulers.policies.elastic.contender import Contender
from presage.schedulers.policies.elastic.job_speed import JobSpeed, Size
from presage.schedulers.policies.elastic.placement import Placement
from presage.schedulers.policies.elastic.shared_placement import SharedPlacement
from presage.schedulers.policies.elastic.sizes import (
    Demand,
    Increment,
    allocate,
    completion_rate,
    increments,
)

MOST_SLOWDOWN = 1.5  # two equal jobs that share a device end as early, on average, as in turns
_SCANNED = 2.0  # pending jobs are considered until their fewest devices are as many clusters
_MOST_CACHED = 50_000  # jobs; with fewer than there are, each decision would predict all again


class Elastic(Policy):
    """Policy that resizes elastic jobs, and starts and preempts jobs as ``srtf`` does.

    At each decision all devices are divided again. Increments of devices go to jobs by class, then
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
    jobs_per_device : int
        Largest number of jobs on a device. With 2 or more, elastic jobs that would wait join
        others at their smallest size, if their predicted memory bounds fit and all of them
        together do more work per second (requirement S4).
    most_slowdown : float
        Largest predicted slowdown of jobs that share a device.

    Raises
    ------
    ConfigError
        A parameter is negative or not finite, or one of the last two is less than 1.
    """

    needs = PolicyNeeds(preempts=True, scales=True, orders_jobs=True)

    def __init__(
        self,
        hold_s: float = 60.0,
        gain: float = 0.05,
        jobs_per_device: int = 1,
        most_slowdown: float = MOST_SLOWDOWN,
    ) -> None:
        values = {"hold_s": hold_s, "gain": gain}
        least = {"jobs_per_device": jobs_per_device, "most_slowdown": most_slowdown}
        for name, value in {**values, **least}.items():
            lowest = 1 if name in least else 0
            if not lowest <= value < math.inf:
                raise ConfigError(
                    f"policy 'elastic': {name}={value}, must be a finite number >= {lowest}"
                )
        self.hold_s, self.gain = hold_s, gain
        self._limits = SharingLimits(jobs_per_device, most_slowdown)
        if jobs_per_device > 1:
            self.needs = replace(
                self.needs, most_members=jobs_per_device, most_slowdown=most_slowdown
            )
        self._increments: dict[tuple[object, ...], tuple[Increment, ...]] = {}
        self._speeds: dict[str, tuple[tuple[object, ...], JobSpeed]] = {}

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return priority, then the predicted remaining device-seconds as requested."""
        left_s = forecasts.runtime_s(job) * job.gpus - status.attained_s
        return (-job.priority, max(0.0, left_s), job.submit_s)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        """Divide all devices again; preempt, shrink, start and grow jobs accordingly."""
        if not len(state.pending) and not state.running:
            return []
        contenders = list(self._contenders(state, forecasts))
        held = {device for one in contenders for device in one.own}
        sizes = allocate([one.demand for one in contenders], state.idle_count + len(held))
        if self._limits.jobs_per_device == 1:
            placement = Placement(state, contenders, sizes, hold_s=self.hold_s, gain=self.gain)
        else:
            placement = SharedPlacement(
                state, contenders, sizes, hold_s=self.hold_s, gain=self.gain,
                forecasts=forecasts, limits=self._limits,
            )  # fmt: skip
        return placement.actions()

    def _contenders(self, state: State, forecasts: Forecasts) -> Iterator[Contender]:
        """Yield the running jobs, and the first of the pending jobs."""
        for job_id, status in state.running.items():
            yield self._contender(state.job(job_id), status, state, forecasts)
        scanned, most = 0, _SCANNED * state.cluster.devices * self._limits.jobs_per_device
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
        kinds = _kinds(job, own, forecasts, state)
        kind = cluster.kind_of(own[0]) if own else kinds[0][0]
        measured_s = state.paces_s(job.job_id)
        speed = self._speed(job, kind, forecasts, measured_s)
        key = (job.job_id, job.request, kind, tuple(measured_s.items()), len(own))
        found = self._increments.get(key)
        if found is None:
            if len(self._increments) > _MOST_CACHED:
                self._increments = {}
            largest = cluster.nodes_of(job.kinds).largest
            sizes = _sizes(job, speed, own, state)
            speed.predict((gpus, fewest_nodes(gpus, largest)) for gpus in sizes)
            found = self._increments[key] = self._increments_of(
                job, sizes, lambda gpus: speed.run_s((gpus, fewest_nodes(gpus, largest)))
            )
        demand = self._demand(job, found, 1.0 - state.progress(job.job_id))
        return Contender(job, status, own, kinds, speed, demand)

    def _speed(
        self, job: Job, kind: str, forecasts: Forecasts, measured_s: Mapping[Size, float]
    ) -> JobSpeed:
        """Return the speed of a job; kept until it is measured again, because it is fitted."""
        key = (job, kind, forecasts, tuple(measured_s.items()))
        kept = self._speeds.get(job.job_id)
        if kept is not None and kept[0] == key:
            return kept[1]
        if len(self._speeds) > _MOST_CACHED:
            self._speeds = {}
        speed = JobSpeed(job, kind, forecasts, measured_s)
        self._speeds[job.job_id] = key, speed
        return speed

    def _increments_of(
        self, job: Job, sizes: Sequence[int], run_s: Callable[[int], float]
    ) -> tuple[Increment, ...]:
        """Return the increments of a job, given the run time of the whole job by size."""
        return increments(sizes, lambda gpus: completion_rate(run_s(gpus)), job.gpus)

    def _demand(self, job: Job, found: tuple[Increment, ...], left: float) -> Demand:
        return Demand((not job.latency_sensitive, -job.priority), left, found, job.gpus)


def _kinds(
    job: Job, own: Sequence[int], forecasts: Forecasts, state: State
) -> tuple[tuple[str, ...], ...]:
    """Return the sets of kinds of which a job may get devices, the fastest first.

    A set is one kind, unless the job runs on several, or needs more devices than there are of any.
    """
    cluster = state.cluster
    if own:
        return (tuple(sorted({cluster.kind_of(device) for device in own})),)
    kinds = [kind for kind in cluster.kinds if not job.kinds or kind in job.kinds]
    kinds.sort(key=lambda kind: forecasts.prediction(job, kind).runtime_s)
    small = forecasts.too_small(job)
    kinds = [kind for kind in kinds if kind not in small] or kinds
    large = [kind for kind in kinds if cluster.kinds[kind] >= job.fewest_gpus]
    return tuple((kind,) for kind in large) or (tuple(kinds),)


def _sizes(job: Job, speed: JobSpeed, own: Sequence[int], state: State) -> Sequence[int]:
    """Return the numbers of devices that a job may get."""
    if not job.is_elastic or job.gpus_per_task > 1 or job.node_limits:
        return [len(own) or gang_size(job, state.cluster)]
    most = min(job.most_gpus, state.cluster.nodes_of(job.kinds).devices)
    limit = job.gpus if not speed.is_known else MOST_GROWTH * speed.largest_measured
    limit = max(limit, len(own))  # measured before a restart of the scheduler
    return range(job.fewest_gpus, max(job.fewest_gpus, min(most, limit)) + 1)
