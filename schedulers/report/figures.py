"""Figures of the report: the metrics table, and job completion times by gang size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from presage.schedulers.core.job_status import Phase
from presage.schedulers.simulator.results.schedule_metrics import Metrics
from presage.schedulers.simulator.simulation import JobResult
from presage.system.arrays import Array

# Gang classes, by the largest number of devices.
GANG_CLASSES = {1: "1", 2: "2", 4: "3-4", 8: "5-8", 16: "9-16", math.inf: "17 or more"}
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_UNIT_LIMITS_S = {"s": 300.0, "min": 3 * 3600.0, "h": math.inf}
_MAX_POINTS = 400  # of a distribution
_Best = Callable[[list[float]], float] | None


@dataclass(frozen=True, slots=True)
class Cell:
    """Value of a metric under one policy, its text, and whether it is the best."""

    value: float | None
    text: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class Column:
    """Metric of all policies, in one unit."""

    key: str
    title: str
    unit: str
    cells: Mapping[str, Cell]
    is_ranked: bool  # whether some values are better than others


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of JCT over the jobs of a gang class under a policy."""

    gangs: str
    policy: str
    jobs: int
    p10_s: float
    median_s: float
    p90_s: float
    p99_s: float
    is_best: bool


def make_columns(metrics: Mapping[str, Metrics]) -> list[Column]:
    """Return the columns of the metrics table; optional ones only if a policy has a value."""
    times = {
        "average_jct_s": "JCT mean",
        "median_jct_s": "JCT median",
        "p99_jct_s": "JCT 99 %",
        "average_queue_s": "waiting mean",
        "makespan_s": "makespan",
    }
    columns = [_count_column("jobs", "finished", metrics, None)]
    for key in ("failed", "rejected", "starved"):
        if any(getattr(one, key) for one in metrics.values()):
            columns.append(_count_column(key, key, metrics, min))
    for key, title in times.items():
        values = {name: getattr(one, key) for name, one in metrics.items()}
        unit = unit_of([value for value in values.values() if value is not None])
        columns.append(_column(key, title, unit, values, _format_in(unit), min))
    columns += [
        _ratio_column("average_slowdown", "slowdown mean", metrics),
        _ratio_column("p99_unfairness", "unfairness 99 %", metrics),
        _percent_column("unfair_fraction", "unfair", metrics, min),
        _percent_column("device_utilization", "devices in use", metrics, max),
    ]
    for key in ("preemptions", "restarts", "overflows"):
        usual = "preemptions" if key == "restarts" else None  # usually equal
        if any(
            getattr(one, key) != (getattr(one, usual) if usual else 0) for one in metrics.values()
        ):
            columns.append(_count_column(key, key, metrics, None))
    if any(one.lost_gpu_hours for one in metrics.values()):
        lost = {name: one.lost_gpu_hours for name, one in metrics.items()}
        columns.append(_column("lost_gpu_hours", "lost", "GPU hours", lost, _hours, min))
        key = "effective_training_time_ratio"
        columns.append(_percent_column(key, "effective training time", metrics, max))
    if any(one.memory_exceeded_rate is not None for one in metrics.values()):
        columns.append(_percent_column("memory_exceeded_rate", "memory exceeded", metrics, None))
    if any(one.slo_violation_rate is not None for one in metrics.values()):
        columns.append(_percent_column("slo_violation_rate", "SLO violated", metrics, min))
        values = {name: one.best_effort_queue_s for name, one in metrics.items()}
        unit = unit_of([value for value in values.values() if value is not None])
        title = "best-effort waiting"
        columns.append(_column("best_effort_queue_s", title, unit, values, _format_in(unit), min))
    return columns + _traffic_columns(metrics)


def _traffic_columns(metrics: Mapping[str, Metrics]) -> list[Column]:
    """Return the bytes sent over each level of the topology that gangs used."""
    traffic = {name: one.bytes_by_level or {} for name, one in metrics.items()}
    levels = dict.fromkeys(level for by_level in traffic.values() for level in by_level)
    columns = []
    for level in levels:
        values = {name: by_level.get(level) for name, by_level in traffic.items()}
        if any(values.values()):
            columns.append(_column(level, f"sent over {level}", "TB", values, _terabytes, None))
    return columns


def _hours(value: float) -> str:
    return f"{value:,.1f}"


def unit_of(seconds: Sequence[float]) -> str:
    """Return the unit for the longest of some times: seconds, minutes or hours."""
    greatest = max(seconds, default=0.0)
    return next(unit for unit, limit_s in _UNIT_LIMITS_S.items() if greatest < limit_s)


def format_time_span(seconds: float) -> str:
    """Format a duration in at most two units, such as "3 d 4 h", as the page's script does."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return _two_units(round(seconds), 60, "min", "s")
    if seconds < 86400:
        return _two_units(round(seconds / 60), 60, "h", "min")
    return _two_units(round(seconds / 3600), 24, "d", "h")


def gang_classes(gpus: Sequence[int]) -> NDArray[np.int64]:
    """Return the index in ``GANG_CLASSES`` of each number of devices."""
    return np.searchsorted(list(GANG_CLASSES), gpus)


def make_spreads(results: Mapping[str, Sequence[JobResult]]) -> list[Spread]:
    """Return the JCT of finished jobs by gang class and policy, without empty classes."""
    by_class: list[dict[str, Array]] = [{} for _ in GANG_CLASSES]
    for policy, policy_results in results.items():
        finished = [result for result in policy_results if result.phase is Phase.FINISHED]
        jct_s = np.array([result.end_s - result.job.submit_s for result in finished])
        classes = gang_classes([result.job.gpus for result in finished])
        for index in np.unique(classes):
            by_class[index][policy] = jct_s[classes == index]
    spreads = []
    for gangs, policies in zip(GANG_CLASSES.values(), by_class, strict=True):
        points = {name: np.percentile(jct_s, (10, 50, 90, 99)) for name, jct_s in policies.items()}
        shown = {name: format_time_span(float(p[1])) for name, p in points.items()}
        least = (
            shown[min(points, key=lambda name: points[name][1])]
            if len(set(shown.values())) > 1
            else None
        )
        for name, (p10, median, p90, p99) in points.items():
            best = shown[name] == least
            jobs = len(policies[name])
            spreads.append(Spread(gangs, name, jobs, p10, median, p90, p99, best))
    return spreads


def distribution(seconds: Sequence[float]) -> tuple[Array, Array]:
    """Return the empirical distribution function of times: up to 400 times, and fractions.

    The points are evenly spaced by jobs.
    """
    values = np.sort(np.asarray(seconds, dtype=float))
    index = np.unique(np.linspace(0, len(values) - 1, min(_MAX_POINTS, len(values))).astype(int))
    return values[index], (index + 1) / len(values)


def _two_units(small: int, ratio: int, big_name: str, small_name: str) -> str:
    big, rest = divmod(small, ratio)
    return f"{big:,} {big_name} {rest} {small_name}" if rest else f"{big:,} {big_name}"


def _count_column(
    key: str,
    title: str,
    metrics: Mapping[str, Metrics],
    best: _Best,
) -> Column:
    values = {name: getattr(one, key) for name, one in metrics.items()}
    return _column(key, title, "", values, "{:,.0f}".format, best)


def _ratio_column(key: str, title: str, metrics: Mapping[str, Metrics]) -> Column:
    values = {name: getattr(one, key) for name, one in metrics.items()}
    return _column(key, title, "x", values, "{:,.2f}".format, min)


def _percent_column(key: str, title: str, metrics: Mapping[str, Metrics], best: _Best) -> Column:
    values = {name: getattr(one, key) for name, one in metrics.items()}
    return _column(key, title, "%", values, lambda part: f"{100 * part:.1f}", best)


def _format_in(unit: str) -> Callable[[float], str]:
    return lambda seconds: f"{seconds / _UNITS[unit]:,.2f}"


def _terabytes(sent_bytes: float) -> str:
    return f"{sent_bytes / 1e12:,.2f}"


def _column(
    key: str,
    title: str,
    unit: str,
    values: Mapping[str, float | None],
    shown: Callable[[float], str],
    best: _Best,
) -> Column:
    """Return a column; cells with the text of the best value are best, unless all are equal."""
    known = [value for value in values.values() if value is not None]
    top = shown(best(known)) if best and len({shown(value) for value in known}) > 1 else None
    texts = {name: "-" if value is None else shown(value) for name, value in values.items()}
    cells = {name: Cell(values[name], text, text == top) for name, text in texts.items()}
    return Column(key, title, unit, cells, best is not None)
