"""Charts of the report: number of devices of elastic jobs over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from presage.schedulers.simulator.simulation import Simulation

WIDTH, HEIGHT = 1000, 40
_MOST_CHARTS = 12  # of a policy: the jobs that were resized most
_MOST_POINTS = 2000
_STARTS = {"start", "resize", "migrate", "shrink"}
_STOPS = {"finish", "preempt", "lost", "overflow", "pause"}


@dataclass(frozen=True, slots=True)
class SizeChart:
    """Number of devices of one job over time, as an SVG path of ``WIDTH`` x ``HEIGHT``.

    Attributes
    ----------
    resizes : int
        Number of changes of the number of devices while the job ran.
    largest : int
        Its largest number of devices, at the top of the chart.
    """

    policy: str
    job_id: str
    resizes: int
    largest: int
    path: str


def make_size_charts(simulations: Mapping[str, Simulation]) -> list[SizeChart]:
    """Return the charts of the jobs that were resized most, by policy; none without resizes."""
    logs = [run.log.entries for run in simulations.values()]
    end_s = max((entries[-1][0] for entries in logs if entries), default=0.0)
    charts = []
    for policy, run in simulations.items():
        sizes = _sizes(run)
        found = [
            SizeChart(policy, job_id, resizes, max(gpus for _, gpus in steps), _path(steps, end_s))
            for job_id, steps in sizes.items()
            if (resizes := _resizes(steps))
        ]
        charts += sorted(found, key=lambda one: (-one.resizes, one.job_id))[:_MOST_CHARTS]
    return charts


def _sizes(run: Simulation) -> dict[str, list[tuple[float, int]]]:
    """Return the times at which elastic jobs changed their number of devices, and the number."""
    elastic = {job_id for job_id, job in run.ledger.jobs.items() if job.is_elastic}
    sizes: dict[str, list[tuple[float, int]]] = {}
    for now_s, event, job_id, details in run.log.entries:
        if job_id in elastic and event in _STARTS | _STOPS:
            gpus = len(details) if event in _STARTS else 0
            steps = sizes.setdefault(job_id, [])
            if not steps or steps[-1][1] != gpus:
                steps.append((now_s, gpus))
    return sizes


def _resizes(steps: list[tuple[float, int]]) -> int:
    return sum(bool(before and after) for (_, before), (_, after) in pairwise(steps))


def _path(steps: list[tuple[float, int]], end_s: float) -> str:
    """Return a step function; of a job with very many changes, its first ones."""
    largest = max(gpus for _, gpus in steps)
    parts = []
    for number, (now_s, gpus) in enumerate(steps[:_MOST_POINTS]):
        x, y = WIDTH * now_s / end_s if end_s else 0.0, HEIGHT - (HEIGHT - 2) * gpus / largest
        parts.append(f"M{x:.1f} {HEIGHT}V{y:.1f}" if number == 0 else f"H{x:.1f}V{y:.1f}")
    return "".join(parts)
