"""Planner of views: a pure function of the reports of all jobs and the view in force.

A new view is planned when a job comes or goes, when arrivals differ by more than their margin from
what the view predicts, and when the window of a job is half over. Otherwise the view in force
stays, because each change costs messages to all ranks and may cost a fence at the switches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from presage.collectives.core.arbitration import predicted_arrivals
from presage.collectives.core.demand import JobDemand
from presage.collectives.core.view import RING_ONLY, JobView, View

# AllReduces of each job from a view to its use by all: votes are sent with one and used from the
# next one on, first to revoke, then to grant.
ADOPTION_CALLS = 4
_MESSAGES_S = 0.2  # of the reports between them
_LEAST_MARGIN = 0.02  # of the period: smaller changes are noise


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Sizes of windows, and the width of predicted arrivals.

    Attributes
    ----------
    horizon_s : float
        Predicted time that the window of the fastest job should last.
    min_window, max_window : int
        Least and greatest number of AllReduces in a window.
    max_decisions : int
        Greatest number of decisions of a view, over all of its jobs.
    margin : float
        Factor on the margins that jobs report for their arrivals. 0 decides by the most likely
        arrivals: wider ones conflict more often, so that slots stay unused.

    Raises
    ------
    ValueError
        A value is out of range.
    """

    horizon_s: float = 10.0
    min_window: int = 64
    max_window: int = 4096
    max_decisions: int = 20_000
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.horizon_s < math.inf and 0 <= self.margin < math.inf):
            raise ValueError(
                f"horizon_s={self.horizon_s}, margin={self.margin}: must be finite, above 0 and at "
                "least 0"
            )
        if not (1 <= self.min_window <= self.max_window and self.max_decisions >= 1):
            raise ValueError(
                f"min_window={self.min_window}, max_window={self.max_window}, max_decisions="
                f"{self.max_decisions}: must be at least 1, in ascending order"
            )


@dataclass(frozen=True, slots=True)
class JobReport:
    """State of a job, as its ranks report it.

    Attributes
    ----------
    demand : JobDemand
        Rhythm of the job, on the clock of the arbiter.
    started : int
        Number of an AllReduce that all of its ranks have started; -1 for none.
    """

    demand: JobDemand
    started: int


def plan(
    reports: Iterable[JobReport],
    current: View | None,
    slots: Mapping[str, int],
    options: PlannerOptions | None = None,
    tables: Mapping[str, JobView] | None = None,
) -> View | None:
    """Return the view that should be in force, or None if the current one is good enough.

    Parameters
    ----------
    reports : iterable of JobReport
        Jobs of the domain, in any order.
    current : View or None
        View that was planned last.
    slots : Mapping of str to int
        Jobs that each switch aggregates for at a time; 0 for a switch that cannot be reached.
    options : PlannerOptions, optional
        Sizes of windows, and the width of predicted arrivals.
    tables : mapping of str to JobView, optional
        Decisions in force, by job. The new view keeps those of AllReduces that start before it is
        adopted, unless slots have changed.
    """
    options = options or PlannerOptions()
    ordered = sorted(reports, key=lambda report: report.demand.job_id)
    reason = "" if current is None else _reason_to_plan(ordered, current, slots)
    if current is not None and not reason:
        return None
    demands = tuple(
        replace(report.demand, margin_s=options.margin * report.demand.margin_s)
        for report in ordered
    )
    window = _window(demands, options)
    return View(
        epoch=0 if current is None else current.epoch + 1,
        slots=tuple(sorted(slots.items())),
        jobs=demands,
        # At a number that all ranks have started: earlier ones cannot be revoked any more.
        first_numbers=tuple(max(report.started, 0) for report in ordered),
        window=window,
        kept=() if reason == "slots" else _kept(ordered, tables or {}, window),
    )


def _kept(
    reports: list[JobReport], tables: Mapping[str, JobView], window: int
) -> tuple[bytes, ...]:
    """Return the decisions in force for the AllReduces that start before a view is adopted."""
    slowest_s = max(
        (_next_s(one, ADOPTION_CALLS) for one in reports if one.demand.is_predictable), default=0.0
    )
    found = []
    for report in reports:
        is_known = report.demand.is_predictable
        calls = _count_within(report.demand, slowest_s + _MESSAGES_S) if is_known else 0
        table = tables.get(report.demand.job_id, RING_ONLY)
        first = max(report.started, 0)
        numbers = range(first, first + min(calls, window // 4))
        found.append(bytes(table.reason(number) for number in numbers))
    return tuple(found)


def _next_s(report: JobReport, calls: int) -> float:
    """Return the predicted time from the newest AllReduce to the one ``calls`` later, by ring."""
    first = max(report.started, 0)
    return report.demand.arrival_s(first + calls) - report.demand.arrival_s(first)


def _count_within(demand: JobDemand, time_s: float) -> int:
    """Return how many AllReduces start in a time if all of them run on the switch."""
    saved_s = sum(demand.shift_s(demand.anchor_number + i) for i in range(len(demand.calls)))
    fastest_s = max(demand.period_s - saved_s, demand.period_s / 4)
    return math.ceil(min(time_s / fastest_s, 1e6) * len(demand.calls)) + 1


def _reason_to_plan(reports: list[JobReport], current: View, slots: Mapping[str, int]) -> str:
    """Return why a new view is needed; "" if none is."""
    if tuple(sorted(slots.items())) != current.slots:
        return "slots"
    if [_identity(report.demand) for report in reports] != [_identity(j) for j in current.jobs]:
        return "jobs"
    arrivals_s = predicted_arrivals(current)
    for report, old, first in zip(reports, current.jobs, current.first_numbers, strict=True):
        if report.started - first >= current.window // 2:
            return "window"
        if _has_changed(report, old, arrivals_s.get(old.job_id, ()), first):
            return "rhythm"
    return ""


def _identity(demand: JobDemand) -> tuple[str, int, tuple[str, ...]]:
    return demand.job_id, demand.ranks, demand.switches


def _has_changed(
    report: JobReport, old: JobDemand, arrivals_s: Sequence[float], first: int
) -> bool:
    """Return whether an arrival about a second from now has moved by more than its margin.

    ``arrivals_s`` are the arrivals that the view in force predicts from its first number on.
    """
    new = report.demand
    if new.is_predictable != old.is_predictable:
        return True
    sizes = [call.size_bytes for call in new.calls]
    if sizes != [call.size_bytes for call in old.calls]:
        return True
    if not new.is_predictable:
        return False
    if not arrivals_s:  # of a job of one rank
        return False
    number = max(report.started, first)
    ahead = max(1.0, 1.0 / new.period_s)
    moved_s = new.arrival_s(number) - arrivals_s[number - first]
    moved_s += ahead * (new.period_s - old.period_s)
    return abs(moved_s) > max(new.margin_s, old.margin_s, _LEAST_MARGIN * new.period_s)


def _window(demands: tuple[JobDemand, ...], options: PlannerOptions) -> int:
    """Return a number of AllReduces that lasts for the horizon at the fastest job."""
    if not demands:
        return 0
    rates = [len(job.calls) / job.period_s for job in demands if job.is_predictable]
    required = min(max(rates, default=0.0) * options.horizon_s, float(options.max_window))
    most = max(1, min(options.max_window, options.max_decisions // len(demands)))
    return max(1, min(most, max(options.min_window, math.ceil(required))))
