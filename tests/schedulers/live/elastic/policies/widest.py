"""Policy that needs no forecasts: elastic jobs get as many devices as other jobs leave them."""

from __future__ import annotations

from random import Random

from presage.schedulers.core.action import Action, Preempt, Resize, Start
from presage.schedulers.core.capacity.consolidation import place_consolidated
from presage.schedulers.core.capacity.idle_devices import IdleDevices
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Policy, PolicyNeeds
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.device_choice import choose_devices


class Widest(Policy):
    """Jobs of a fixed size start first, at the expense of elastic jobs, which take the rest.

    A job with a priority preempts elastic jobs if their minimum leaves it no devices.
    """

    needs = PolicyNeeds(preempts=True, scales=True)

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        return (job.submit_s,)

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> list[Action]:
        idle, cluster, actions = state.idle(), state.cluster, list[Action]()
        own = {
            job_id: [one.device for one in status.allocations]
            for job_id, status in state.running.items()
            if state.job(job_id).is_elastic
        }
        for job in [job for job in state.pending if not job.is_elastic]:
            for job_id, devices in own.items():
                if place_consolidated(job, cluster, idle) is None:
                    kept = choose_devices(
                        state.job(job_id).fewest_gpus, devices, _nothing(state), cluster, 0
                    )
                    idle.give(sorted({*devices} - {*(kept or devices)}))
                    own[job_id] = kept or devices
            if job.priority and place_consolidated(job, cluster, idle) is None:
                for devices in own.values():
                    idle.give(devices)
                actions += [Preempt(job_id) for job_id in own]
                own.clear()
            if (allocations := place_consolidated(job, cluster, idle)) is not None:
                idle.take(sorted(one.device for one in allocations))
                actions.append(Start(job.job_id, allocations))
        pending = [job.job_id for job in state.pending if job.is_elastic]
        for job_id in [*own, *pending]:
            job, devices = state.job(job_id), own.get(job_id, [])
            size = min(job.most_gpus, len(devices) + idle.count)
            chosen = choose_devices(size, devices, idle, cluster, -1) if size else None
            if chosen is None or size < job.fewest_gpus:
                continue
            idle.take(sorted({*chosen} - {*devices}))
            allocations = tuple(cluster.full_allocations[one] for one in sorted(chosen))
            before = {one.device for one in state.status(job_id).allocations}
            if not before:
                actions.append(Start(job_id, allocations))
            elif before != {*chosen}:
                actions.append(Resize(job_id, allocations))
        # What frees devices is first.
        return sorted(actions, key=lambda one: _growth(one, state))


def _growth(action: Action, state: State) -> int:
    if isinstance(action, Preempt):
        return -1
    assert isinstance(action, Resize | Start)
    return len(action.allocations) - len(state.status(action.job_id).allocations)


def _nothing(state: State) -> IdleDevices:
    idle = state.idle()
    idle.take([one for one in range(state.cluster.devices) if idle.is_idle(one)])
    return idle
