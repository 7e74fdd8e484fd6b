"""Chart of the number of devices of an elastic job over time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from presage.schedulers.live.client.elastic_text import is_elastic, size_range
from presage.schedulers.live.ui.figures import clock
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.units import counted

MAX_CHANGES = 200  # a controller keeps no more
_MAX_TIMES, _MAX_DATES = 5, 3  # on the axis
_LEAST_GAP, _MAX_SIZES = 0.1, 6  # between sizes on the axis, in lengths of it; number of them
_DENSE = 60  # steps from which on lines are thin
_EDGE = 8.0  # % of the axis, where a centred time would not fit
_DAY_S = 86_400
# Seconds between times on the axis.
_INTERVALS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY_S,
)  # fmt: skip


class Step(NamedTuple):
    """Number of devices from one change to the next; positions in % of the chart.

    Attributes
    ----------
    from_y, y : float
        Position of the number of devices before, and of ``gpus``.
    is_change : bool
        Whether the step begins with a change; false while the job waits for its first devices.
    """

    time_unix_s: float
    gpus: int
    reason: str
    x: float
    width: float
    from_y: float
    y: float
    is_change: bool
    title: str


class Tick(NamedTuple):
    """Label of an axis; its position in % of the axis."""

    at: float
    text: str
    anchor: str = "middle"


class SizeChart(NamedTuple):
    """Step chart of a job's devices, from its submission until now or its end.

    Attributes
    ----------
    is_complete : bool
        Whether it has all changes; else it begins with the first known one.
    has_dates : bool
        Whether it covers a day or more, so that times need a date.
    most_y, fewest_y : float
        Position of the largest and the smallest number of devices of the job.
    """

    steps: list[Step]
    fewest: int
    most: int
    most_y: float
    fewest_y: float
    times: list[Tick]
    sizes: list[Tick]
    is_complete: bool
    has_dates: bool
    label: str

    @property
    def is_dense(self) -> bool:
        """Whether it has so many steps that its lines are thin."""
        return len(self.steps) >= _DENSE

    @property
    def changes(self) -> list[Step]:
        """Changes of the number of devices, newest first."""
        return [step for step in reversed(self.steps) if step.is_change]


def make_size_chart(row: pb.JobStatus, now_unix_s: float) -> SizeChart | None:
    """Return the chart of an elastic job; None for another job.

    Parameters
    ----------
    now_unix_s : float
        Time at which the status was fetched.
    """
    if not is_elastic(row.job):
        return None
    is_complete = len(row.sizes) < MAX_CHANGES
    begin_s = row.submitted_unix_s if is_complete else row.sizes[0].time_unix_s
    last_s = row.sizes[-1].time_unix_s if row.sizes else begin_s
    end_s = max(row.ended_unix_s or now_unix_s, last_s, begin_s + 1.0)
    fewest, most = size_range(row.job)
    top = max([most, *(change.gpus for change in row.sizes)])
    steps = list(_steps(row, begin_s, end_s, top, is_complete=is_complete))
    return SizeChart(
        steps, fewest, most, _y(most, top), _y(fewest, top), time_ticks(begin_s, end_s),
        _sizes(top, (most, fewest)), is_complete, end_s - begin_s >= _DAY_S, _label(row, steps),
    )  # fmt: skip


def _steps(
    row: pb.JobStatus, begin_s: float, end_s: float, top: int, *, is_complete: bool
) -> Iterator[Step]:
    waits = pb.SizeChange(time_unix_s=begin_s, reason="it waits for its first devices")
    points = [*([waits] if is_complete else []), *row.sizes, pb.SizeChange(time_unix_s=end_s)]
    before = 0
    for number, (change, following) in enumerate(pairwise(points)):
        x, end = (_x(point.time_unix_s, begin_s, end_s) for point in (change, following))
        title = (
            f"{clock(change.time_unix_s)} to {clock(following.time_unix_s)}: "
            f"{counted(change.gpus, 'device')}{f': {change.reason}' if change.reason else ''}"
        )
        yield Step(
            change.time_unix_s, change.gpus, change.reason, x, round(end - x, 3), _y(before, top),
            _y(change.gpus, top), bool(number) or not is_complete, title,
        )  # fmt: skip
        before = change.gpus


def _x(time_unix_s: float, begin_s: float, end_s: float) -> float:
    return round(100 * min(1.0, max(0.0, (time_unix_s - begin_s) / (end_s - begin_s))), 3)


def _y(gpus: int, top: int) -> float:
    return round(100 - 100 * gpus / top, 3)


def time_ticks(begin_s: float, end_s: float) -> list[Tick]:
    """Return round times of this machine's time zone, as labels of an axis."""
    span_s = end_s - begin_s
    most = _MAX_TIMES if span_s < _DAY_S else _MAX_DATES
    every_s = next((s for s in _INTERVALS_S if span_s / s <= most), 0)
    every_s = every_s or _DAY_S * math.ceil(span_s / _DAY_S / most)
    form = "%H:%M:%S" if every_s < 60 else "%H:%M" if span_s < _DAY_S else "%m-%d %H:%M"
    offset_s = time.localtime(end_s).tm_gmtoff
    first = math.ceil((begin_s + offset_s) / every_s)
    last = math.floor((end_s + offset_s) / every_s)
    ticks = []
    for number in range(first, last + 1):
        at_s = number * every_s - offset_s
        at = _x(at_s, begin_s, end_s)
        anchor = "start" if at < _EDGE else "end" if at > 100 - _EDGE else "middle"
        ticks.append(Tick(at, time.strftime(form, time.localtime(at_s)), anchor))
    return ticks


def _sizes(top: int, bounds: Iterable[int]) -> list[Tick]:
    """Return 0, the bounds of a job, and as many round sizes as there is space for."""
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, top) if top / n <= _MAX_SIZES)
    shown: list[int] = []
    for gpus in (top, 0, *bounds, *range(every, top, every)):
        if all(abs(gpus - other) >= _LEAST_GAP * top for other in shown):
            shown.append(gpus)
    return [Tick(_y(gpus, top), str(gpus)) for gpus in sorted(shown)]


def _label(row: pb.JobStatus, steps: list[Step]) -> str:
    fewest, most = size_range(row.job)
    sizes = ", ".join(f"{step.gpus} from {clock(step.time_unix_s)}" for step in steps[-5:])
    last = "" if row.ended_unix_s else f": {steps[-1].gpus} now"
    return (
        f"Devices over time{last}; the range is {fewest} to {most}. Last sizes: {sizes}. The table "
        "lists all changes with their reasons."
    )
