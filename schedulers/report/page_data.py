"""Data of the report page: the jobs, bars, curves and distributions that its scripts draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.report.bars import make_bars
from presage.schedulers.report.figures import GANG_CLASSES, distribution, gang_classes
from presage.schedulers.report.packing import delta_encode, narrow, pack
from presage.schedulers.simulator.results.timeline import ENDS, Steps, Timeline, make_timeline
from presage.schedulers.simulator.simulation import Simulation
from presage.system.arrays import Array
from presage.system.text.printable import printable

_MAX_STEPS = 4096  # of a curve; longer curves are averaged over equal spans
_MIN_TICK_S = 0.001
_MAX_TICKS = 2**28  # fewer digits make a smaller page
_PHASES = ("starved", Phase.FINISHED, Phase.FAILED, Phase.REJECTED)
_MAX_USERS = 7  # the users with the most jobs have a colour of their own


def page_data(simulations: Mapping[str, Simulation]) -> str:
    """Return the packed jobs, and the bars, curves and distributions of each policy.

    Times of jobs and bars are in ticks of a power of ten in seconds.
    """
    first = next(iter(simulations.values()))
    jobs = list(first.ledger.jobs.values())
    timelines = {name: _timeline(run) for name, run in simulations.items()}
    end_s = max(timeline.end_s for timeline in timelines.values())
    tick_s = _MIN_TICK_S
    while end_s / tick_s > _MAX_TICKS:
        tick_s *= 10
    arrays, job_names = _jobs(jobs, tick_s)
    for i, (name, run) in enumerate(simulations.items()):
        columns = _policy(run, timelines[name], tick_s)
        arrays |= {f"{i}.{key}": array for key, array in columns.items()}
    about = {
        "tick_s": tick_s,
        "end_s": end_s,
        "ends_s": [timeline.end_s for timeline in timelines.values()],
        "policies": list(simulations),
        "nodes": [[node.name, node.devices, node.kind] for node in first.ledger.cluster.nodes],
        "gangs": list(GANG_CLASSES.values()),
        "ends": ENDS,
        "phases": _PHASES,
        "shared": any(
            bool((timeline.intervals.compute_milli < FULL_DEVICE_MILLI).any())
            for timeline in timelines.values()
        ),
        **job_names,
    }
    return pack(about, arrays)


def _timeline(run: Simulation) -> Timeline:
    ended = {result.job.job_id for result in run.results}
    return make_timeline(run.log.entries, run.ledger.cluster, ended)


def _jobs(jobs: Sequence[Job], tick_s: float) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the columns of jobs, and the names to which the columns refer by index."""
    models = list(dict.fromkeys(job.model for job in jobs))
    users = list(dict.fromkeys(job.user for job in jobs))
    model_index = {model: i for i, model in enumerate(models)}
    user_index = {user: i for i, user in enumerate(users)}
    user = np.array([user_index[job.user] for job in jobs], dtype=np.int64)
    top_users = np.argsort(-np.bincount(user, minlength=len(users)), kind="stable")[:_MAX_USERS]
    arrays = {
        "submit": delta_encode(_ticks(np.array([job.submit_s for job in jobs]), tick_s)),
        "gpus": narrow(np.array([job.gpus for job in jobs], dtype=np.int64)),
        "gang": narrow(gang_classes([job.gpus for job in jobs])),
        "model": narrow(np.array([model_index[job.model] for job in jobs], dtype=np.int64)),
        "user": narrow(user),
    }
    names = "\n".join(printable(job.job_id, None) for job in jobs)
    texts = {
        "models": [printable(model, None) for model in models],
        "users": [printable(user, None) for user in users],
        "top_users": top_users.tolist(),
        "names": names,
    }
    return arrays, texts


def _policy(run: Simulation, timeline: Timeline, tick_s: float) -> dict[str, NDArray[Any]]:
    """Return bars, outages, curves over time and distributions over jobs of a policy."""
    job_index = {job_id: i for i, job_id in enumerate(run.ledger.jobs)}
    bars = make_bars(timeline.intervals)
    start, end = _ticks(bars.start_s, tick_s), _ticks(bars.end_s, tick_s)
    phase = np.zeros(len(job_index), dtype=np.uint8)
    for result in run.results:
        phase[job_index[result.job.job_id]] = _PHASES.index(result.phase)
    arrays: dict[str, NDArray[Any]] = {
        "phase": phase,
        "start": delta_encode(start),
        "length": narrow(end - start),
        "job": narrow(bars.job),
        "device": narrow(bars.device),
        "devices": narrow(bars.devices),
        "share": narrow(bars.share_milli),
        "above": narrow(bars.above_milli),
        "end": (bars.ended_by * 2 + bars.paused).astype(np.uint8),
        "down.node": narrow(timeline.outages.index),
        "down.start": narrow(_ticks(timeline.outages.start_s, tick_s)),
        "down.end": narrow(_ticks(timeline.outages.end_s, tick_s)),
    }
    curves = {
        "busy": timeline.busy_devices(),
        "allocated": timeline.allocated_compute(),
        "up": timeline.devices_up(),
        "pending": timeline.pending_jobs(),
    }
    for name, steps in curves.items():
        arrays |= _curve(name, steps.resample(0.0, timeline.end_s, _MAX_STEPS))
    finished = [result for result in run.results if result.phase is Phase.FINISHED]
    arrays |= _distribution("jct", [result.end_s - result.job.submit_s for result in finished])
    arrays |= _distribution("wait", [result.status.waited_s for result in finished])
    return arrays


def _curve(name: str, steps: Steps) -> dict[str, NDArray[Any]]:
    return {f"{name}.at_s": steps.at_s, f"{name}.value": steps.value.astype(np.float32)}


def _distribution(name: str, seconds: Sequence[float]) -> dict[str, NDArray[Any]]:
    at_s, fraction = distribution(seconds)
    return {f"{name}.at_s": at_s, f"{name}.value": fraction.astype(np.float32)}


def _ticks(seconds: Array, tick_s: float) -> NDArray[np.int64]:
    return np.rint(seconds / tick_s).astype(np.int64)
