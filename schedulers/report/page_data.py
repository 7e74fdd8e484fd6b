"""Data that the scripts of the page draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import Phase
from presage.schedulers.report.bars import bars_of
from presage.schedulers.report.figures import GANG_CLASSES, distribution, gang_classes
from presage.schedulers.report.packing import packed, steps_between, whole
from presage.schedulers.simulator.results.timeline import ENDS, Steps, Timeline, make_timeline
from presage.schedulers.simulator.simulation import Simulation
from presage.system.arrays import Array
from presage.system.text.printable import printable

_MOST_STEPS = 4096  # of a curve: beyond, means over equal spans
_FINEST_S = 0.001
_MOST_TICKS = 2**28  # of time: fewer digits make a smaller page
_PHASES = ("starved", Phase.FINISHED, Phase.FAILED, Phase.REJECTED)
_MOST_USERS = 7  # with a colour of their own, those with most jobs


def drawn(simulated: Mapping[str, Simulation]) -> str:
    """Return the packed jobs, and the bars, curves and distributions of each policy.

    Times of jobs and bars are in ticks of a power of ten in seconds.
    """
    first = next(iter(simulated.values()))
    jobs = list(first.ledger.jobs.values())
    lines = {name: _timeline(one) for name, one in simulated.items()}
    end_s = max(line.end_s for line in lines.values())
    tick_s = _FINEST_S
    while end_s / tick_s > _MOST_TICKS:
        tick_s *= 10
    arrays, of_jobs = _jobs(jobs, tick_s)
    for i, (name, one) in enumerate(simulated.items()):
        arrays |= {f"{i}.{key}": array for key, array in _policy(one, lines[name], tick_s).items()}
    about = {
        "tick_s": tick_s,
        "end_s": end_s,
        "ends_s": [line.end_s for line in lines.values()],
        "policies": list(simulated),
        "nodes": [[node.name, node.devices, node.kind] for node in first.ledger.cluster.nodes],
        "gangs": list(GANG_CLASSES.values()),
        "ends": ENDS,
        "phases": _PHASES,
        "shared": any(
            bool((line.intervals.compute_milli < FULL_DEVICE_MILLI).any())
            for line in lines.values()
        ),
        **of_jobs,
    }
    return packed(about, arrays)


def _timeline(one: Simulation) -> Timeline:
    over = {ended.job.job_id for ended in one.results}
    return make_timeline(one.log.entries, one.ledger.cluster, over)


def _jobs(jobs: Sequence[Job], tick_s: float) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the columns of the jobs, and the names that the columns refer to by index."""
    models = list(dict.fromkeys(job.model for job in jobs))
    users = list(dict.fromkeys(job.user for job in jobs))
    of_model = {model: i for i, model in enumerate(models)}
    of_user = {user: i for i, user in enumerate(users)}
    user = np.array([of_user[job.user] for job in jobs], dtype=np.int64)
    many = np.argsort(-np.bincount(user, minlength=len(users)), kind="stable")[:_MOST_USERS]
    arrays = {
        "submit": steps_between(_ticks(np.array([job.submit_s for job in jobs]), tick_s)),
        "gpus": whole(np.array([job.gpus for job in jobs], dtype=np.int64)),
        "gang": whole(gang_classes([job.gpus for job in jobs])),
        "model": whole(np.array([of_model[job.model] for job in jobs], dtype=np.int64)),
        "user": whole(user),
    }
    names = "\n".join(printable(job.job_id, None) for job in jobs)
    words = {
        "models": [printable(model, None) for model in models],
        "users": [printable(user, None) for user in users],
        "many_jobs": many.tolist(),
        "names": names,
    }
    return arrays, words


def _policy(one: Simulation, line: Timeline, tick_s: float) -> dict[str, NDArray[Any]]:
    """Of a policy: bars, nodes that were down, curves over time, distributions over jobs."""
    number = {job_id: i for i, job_id in enumerate(one.ledger.jobs)}
    bars = bars_of(line.intervals)
    start, end = _ticks(bars.start_s, tick_s), _ticks(bars.end_s, tick_s)
    phase = np.zeros(len(number), dtype=np.uint8)
    for ended in one.results:
        phase[number[ended.job.job_id]] = _PHASES.index(ended.phase)
    arrays: dict[str, NDArray[Any]] = {
        "phase": phase,
        "start": steps_between(start),
        "length": whole(end - start),
        "job": whole(bars.job),
        "device": whole(bars.device),
        "devices": whole(bars.devices),
        "share": whole(bars.share_milli),
        "above": whole(bars.above_milli),
        "end": (bars.ended_by * 2 + bars.paused).astype(np.uint8),
        "down.node": whole(line.outages.index),
        "down.start": whole(_ticks(line.outages.start_s, tick_s)),
        "down.end": whole(_ticks(line.outages.end_s, tick_s)),
    }
    curves = {
        "busy": line.busy_devices(),
        "held": line.allocated_compute(),
        "up": line.devices_up(),
        "pending": line.pending_jobs(),
    }
    for name, steps in curves.items():
        arrays |= _curve(name, steps.resample(0.0, line.end_s, _MOST_STEPS))
    finished = [ended for ended in one.results if ended.phase is Phase.FINISHED]
    arrays |= _distribution("jct", [ended.end_s - ended.job.submit_s for ended in finished])
    arrays |= _distribution("wait", [ended.status.waited_s for ended in finished])
    return arrays


def _curve(name: str, steps: Steps) -> dict[str, NDArray[Any]]:
    return {f"{name}.at_s": steps.at_s, f"{name}.value": steps.value.astype(np.float32)}


def _distribution(name: str, seconds: Sequence[float]) -> dict[str, NDArray[Any]]:
    at_s, part = distribution(seconds)
    return {f"{name}.at_s": at_s, f"{name}.value": part.astype(np.float32)}


def _ticks(seconds: Array, tick_s: float) -> NDArray[np.int64]:
    return np.rint(seconds / tick_s).astype(np.int64)
