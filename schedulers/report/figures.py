"""Figures of the page that compare policies."""

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

# Gangs up to so many devices are one class; the last one is open.
GANG_CLASSES = {1: "1", 2: "2", 4: "3-4", 8: "5-8", 16: "9-16", math.inf: "17 or more"}
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_LONGEST = {"s": 300.0, "min": 3 * 3600.0, "h": math.inf}
_POINTS = 400  # of a distribution
_Best = Callable[[list[float]], float] | None


@dataclass(frozen=True, slots=True)
class Cell:
    """Value of a figure, its text, and whether it is the best of all policies."""

    value: float | None
    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class Column:
    """Figure of all policies, in one unit."""

    key: str
    title: str
    unit: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles over the jobs of a gang class under a policy, in seconds."""

    gangs: str
    policy: str
    jobs: int
    p10_s: float
    median_s: float
    p90_s: float
    p99_s: float
    best: bool


def columns_of(found: Mapping[str, Metrics]) -> list[Column]:
    """Return the columns of the metrics table, without columns that are zero for every policy."""
    times = {
        "average_jct_s": "JCT mean",
        "median_jct_s": "JCT median",
        "p99_jct_s": "JCT 99 %",
        "average_queue_s": "waiting mean",
        "makespan_s": "makespan",
    }
    columns = [_counts("jobs", "finished", found, None)]
    for key in ("failed", "rejected", "starved"):
        if any(getattr(one, key) for one in found.values()):
            columns.append(_counts(key, key, found, min))
    for key, title in times.items():
        values = {name: getattr(one, key) for name, one in found.items()}
        unit = unit_of([value for value in values.values() if value is not None])
        columns.append(_column(key, title, unit, values, _in(unit), min))
    columns += [
        _ratio("average_slowdown", "slowdown mean", found),
        _ratio("p99_unfairness", "unfairness 99 %", found),
        _part("unfair_fraction", "unfair", found, min),
        _part("device_utilization", "devices in use", found, max),
    ]
    for key in ("preemptions", "restarts", "overflows"):
        same = "preemptions" if key == "restarts" else None  # these are usually equal
        if any(getattr(one, key) != (getattr(one, same) if same else 0) for one in found.values()):
            columns.append(_counts(key, key, found, None))
    if any(one.memory_exceeded_rate is not None for one in found.values()):
        columns.append(_part("memory_exceeded_rate", "memory exceeded", found, None))
    if any(one.slo_violation_rate is not None for one in found.values()):
        columns.append(_part("slo_violation_rate", "SLO violations", found, min))
        values = {name: one.best_effort_queue_s for name, one in found.items()}
        unit = unit_of([value for value in values.values() if value is not None])
        title = "waiting best effort"
        columns.append(_column("best_effort_queue_s", title, unit, values, _in(unit), min))
    return columns + _sent(found)


def _sent(found: Mapping[str, Metrics]) -> list[Column]:
    """Return the bytes sent over each level of the topology that gangs used."""
    known = {name: one.bytes_by_level or {} for name, one in found.items()}
    levels = dict.fromkeys(level for of in known.values() for level in of)
    columns = []
    for level in levels:
        values = {name: of.get(level) for name, of in known.items()}
        if any(values.values()):
            columns.append(_column(level, f"sent over {level}", "TB", values, _terabytes, None))
    return columns


def unit_of(seconds: Sequence[float]) -> str:
    """Return the unit for the longest of some times; hours at most, as in `presage simulate`."""
    greatest = max(seconds, default=0.0)
    return next(unit for unit, longest in _LONGEST.items() if greatest < longest)


def span(seconds: float) -> str:
    """Format a duration in at most two units, such as "3 d 4 h", as the page's script does."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return _two(round(seconds), 60, "min", "s")
    if seconds < 86400:
        return _two(round(seconds / 60), 60, "h", "min")
    return _two(round(seconds / 3600), 24, "d", "h")


def gang_classes(gpus: Sequence[int]) -> NDArray[np.int64]:
    """Return the indices in ``GANG_CLASSES``."""
    return np.searchsorted(list(GANG_CLASSES), gpus)


def spreads_of(ended: Mapping[str, Sequence[JobResult]]) -> list[Spread]:
    """Return the JCT of finished jobs by gang class and policy, without empty classes."""
    by_class: list[dict[str, Array]] = [{} for _ in GANG_CLASSES]
    for policy, ones in ended.items():
        finished = [one for one in ones if one.phase is Phase.FINISHED]
        jct_s = np.array([one.end_s - one.job.submit_s for one in finished])
        places = gang_classes([one.job.gpus for one in finished])
        for place in np.unique(places):
            by_class[place][policy] = jct_s[places == place]
    spreads = []
    for gangs, policies in zip(GANG_CLASSES.values(), by_class, strict=True):
        points = {name: np.percentile(jct_s, (10, 50, 90, 99)) for name, jct_s in policies.items()}
        shown = {name: span(float(p[1])) for name, p in points.items()}
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
    """Return the cumulative distribution of times, at up to 400 points evenly spaced by jobs."""
    values = np.sort(np.asarray(seconds, dtype=float))
    place = np.unique(np.linspace(0, len(values) - 1, min(_POINTS, len(values))).astype(int))
    return values[place], (place + 1) / len(values)


def _two(small: int, in_a_big: int, big_name: str, small_name: str) -> str:
    whole, rest = divmod(small, in_a_big)
    return f"{whole:,} {big_name} {rest} {small_name}" if rest else f"{whole:,} {big_name}"


def _counts(
    key: str,
    title: str,
    found: Mapping[str, Metrics],
    best: _Best,
) -> Column:
    values = {name: getattr(one, key) for name, one in found.items()}
    return _column(key, title, "", values, "{:,.0f}".format, best)


def _ratio(key: str, title: str, found: Mapping[str, Metrics]) -> Column:
    values = {name: getattr(one, key) for name, one in found.items()}
    return _column(key, title, "x", values, "{:,.2f}".format, min)


def _part(key: str, title: str, found: Mapping[str, Metrics], best: _Best) -> Column:
    values = {name: getattr(one, key) for name, one in found.items()}
    return _column(key, title, "%", values, lambda part: f"{100 * part:.1f}", best)


def _in(unit: str) -> Callable[[float], str]:
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
    return Column(key, title, unit, cells)
