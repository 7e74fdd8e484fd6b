"""Charts of the history of a cluster over an hour, a day or a week."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from presage.schedulers.live.ui.figures import clock
from presage.schedulers.live.ui.size_chart import Tick, time_ticks
from presage.schedulers.v1 import cluster_pb2 as pb

WIDTH, HEIGHT = 1000, 100  # of the coordinates of paths
_MAX_TICKS = 5  # of values
_MINUTE_S = 60.0


class Span(NamedTuple):
    """Time that the page shows, and the time of a point; both in seconds."""

    name: str
    span_s: int
    step_s: int


SPANS = {
    one.name: one
    for one in (Span("hour", 3_600, 60), Span("day", 86_400, 600), Span("week", 604_800, 3_600))
}


class Reading(NamedTuple):
    """Value of a series at a point: mean, least and greatest."""

    mean: float
    least: float
    greatest: float


class Line(NamedTuple):
    """Line of a series.

    Attributes
    ----------
    path : str
        Of the means; interrupted where points are missing.
    band : str
        Area from the least to the greatest values; "" if it is not shown.
    """

    name: str
    style: str
    path: str
    band: str


class Hit(NamedTuple):
    """Area of a point, with its values as a tooltip; positions in % of the chart."""

    x: float
    width: float
    title: str


class HistoryChart(NamedTuple):
    """Chart and the table with its values.

    Attributes
    ----------
    columns : list of str
        Of the table, after the time.
    rows : list of (time, list of str)
        Of the table, newest first.
    """

    key: str
    name: str
    unit: str
    lines: list[Line]
    hits: list[Hit]
    values: list[Tick]
    times: list[Tick]
    label: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


class _Series(NamedTuple):
    name: str
    style: str
    read: Callable[[pb.HistoryPoint], Reading | None]


@dataclass(frozen=True)
class _Plan:
    key: str
    name: str
    unit: str
    series: tuple[_Series, ...]
    digits: int = 0
    more_columns: tuple[str, ...] = ()
    more: Callable[[pb.HistoryPoint], list[str]] = lambda _point: []
    has_dots: bool = False  # instead of a line: points of different jobs
    is_of_greatest: bool = False  # the line, instead of means: rare states would hardly be seen
    is_optional: bool = False  # left out without values


def _state(field: str) -> Callable[[pb.HistoryPoint], Reading | None]:
    def read(point: pb.HistoryPoint) -> Reading:
        value: pb.SampledValue = getattr(point, field)
        return Reading(value.mean, value.least, value.greatest)

    return read


def _reading(field: str) -> Callable[[pb.HistoryPoint], Reading | None]:
    known = _state(field)

    def read(point: pb.HistoryPoint) -> Reading | None:
        return known(point) if point.HasField(field) else None

    return read


def _error(point: pb.HistoryPoint) -> Reading | None:
    errors = point.forecast_errors
    percent = 100 * errors.mean
    return Reading(percent, percent, percent) if errors.jobs else None


_PLANS = (
    _Plan(
        "devices",
        "Devices",
        "",
        (
            _Series("in use", "c0", _state("devices_in_use")),
            _Series("compute allocated", "c1", _state("allocated_devices")),
            _Series("compute used", "c2", _state("used_devices")),
            _Series("all", "plain", _state("devices")),
        ),
        digits=1,
    ),
    _Plan(
        "jobs", "Jobs", "",
        (
            _Series("waiting", "c1", _state("waiting_jobs")),
            _Series("running", "c0", _state("running_jobs")),
        ),
        more_columns=("finished", "failed"),
        more=lambda point: [str(point.finished_jobs), str(point.failed_jobs)],
    ),
    _Plan(
        "slo", "SLO violations", "jobs",
        (_Series("violate their SLO, or are predicted to", "c5", _state("slo_violated_jobs")),),
        is_of_greatest=True,
    ),
    _Plan(
        "temperature", "Temperature", "°C",
        (_Series("hottest device", "c5", _reading("hottest_c")),),
        is_optional=True,
    ),
    _Plan(
        "power", "Power", "W",
        (_Series("all devices that report it", "c4", _reading("power_w")),),
        is_optional=True,
    ),
    _Plan(
        "errors", "Errors of predicted run times", "%",
        (_Series("mean absolute error of jobs that finished", "c3", _error),),
        more_columns=("jobs", "greatest error", "beyond the upper bound"),
        more=lambda point: [
            str(point.forecast_errors.jobs),
            f"{100 * point.forecast_errors.greatest:.0f} %" if point.forecast_errors.jobs else "-",
            str(point.forecast_errors.beyond_bound),
        ],
        has_dots=True,
    ),
)  # fmt: skip


def make_charts(found: pb.HistoryResponse, span: Span, now_unix_s: float) -> list[HistoryChart]:
    """Return the charts of a span that ends now; without errors if the client may not see them."""
    begin_s = now_unix_s - span.span_s
    points = [one for one in found.points if one.time_unix_s + span.step_s > begin_s]
    plans = [
        plan
        for plan in _PLANS
        if (plan.key != "errors" or found.has_errors)
        and (not plan.is_optional or any(_has_value(plan, point) for point in points))
    ]
    return [_chart(plan, points, span, begin_s, now_unix_s) for plan in plans]


def _has_value(plan: _Plan, point: pb.HistoryPoint) -> bool:
    return any(series.read(point) is not None for series in plan.series)


def _chart(
    plan: _Plan, points: Sequence[pb.HistoryPoint], span: Span, begin_s: float, end_s: float
) -> HistoryChart:
    readings = [[series.read(point) for point in points] for series in plan.series]
    present = [one for row in readings for one in row if one is not None]
    top, ticks = value_ticks(max([1.0, *(one.greatest for one in present)]))

    def x(time_s: float) -> float:
        return round(min(1.0, max(0.0, (time_s - begin_s) / (end_s - begin_s))) * WIDTH, 1)

    # A sample is of the begin of its minute, a longer step is drawn in its middle.
    middle_s = 0.0 if span.step_s <= _MINUTE_S else span.step_s / 2
    at = [x(point.time_unix_s + middle_s) for point in points]
    is_next = [
        number > 0 and point.time_unix_s - points[number - 1].time_unix_s <= 1.5 * span.step_s
        for number, point in enumerate(points)
    ]
    has_band = span.step_s > _MINUTE_S and not plan.is_of_greatest and not plan.has_dots
    lines = [
        Line(
            series.name, series.style,
            _path(at, [_drawn(one, plan) for one in row], is_next, top, has_dots=plan.has_dots),
            _band(at, row, is_next, top) if has_band and not number else "",
        )
        for number, (series, row) in enumerate(zip(plan.series, readings, strict=True))
    ]  # fmt: skip
    texts = [
        [_text(row[number], plan, span) for row in readings] + plan.more(point)
        for number, point in enumerate(points)
    ]
    return HistoryChart(
        plan.key, plan.name, plan.unit, lines,
        [
            Hit(x(p.time_unix_s) / 10, round(WIDTH * span.step_s / span.span_s, 1) / 10,
                _title(plan, p, row))
            for p, row in zip(points, texts, strict=True)
        ],
        ticks, time_ticks(begin_s, end_s), _label(plan, readings, span),
        [*(series.name for series in plan.series), *plan.more_columns],
        [(_moment(p.time_unix_s), row) for p, row in zip(points, texts, strict=True)][::-1],
    )  # fmt: skip


def value_ticks(most: float) -> tuple[float, list[Tick]]:
    """Return the top of an axis from 0 that contains ``most``, and labels of round numbers.

    Positions are in % of the axis, from its top.
    """
    raw = max(most / _MAX_TICKS, 1.0)
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(n * scale for n in (1, 2, 5, 10) if n * scale >= raw * (1 - 1e-9))
    count = max(1, math.ceil(most / step - 1e-9))
    top = count * step
    return top, [
        Tick(round(100 - 100 * n / count, 3), f"{n * step:,.0f}") for n in range(count + 1)
    ]


def _drawn(one: Reading | None, plan: _Plan) -> Reading | None:
    return one._replace(mean=one.greatest) if one is not None and plan.is_of_greatest else one


def _y(value: float, top: float) -> float:
    return round(HEIGHT * (1 - min(1.0, max(0.0, value / top))), 2)


def _path(
    at: Sequence[float],
    row: Sequence[Reading | None],
    is_next: Sequence[bool],
    top: float,
    *,
    has_dots: bool,
) -> str:
    """Return the path of the means; a point without neighbours is drawn as a dot."""
    parts, is_open = [], False
    for number, (x, one) in enumerate(zip(at, row, strict=True)):
        if one is None:
            is_open = False
            continue
        follows = is_open and is_next[number] and not has_dots
        parts.append(f"{'L' if follows else 'M'}{x} {_y(one.mean, top)}{'' if follows else 'h0'}")
        is_open = True
    return "".join(parts)


def _band(
    at: Sequence[float], row: Sequence[Reading | None], is_next: Sequence[bool], top: float
) -> str:
    """Return the area between the least and the greatest values."""
    areas: list[list[tuple[float, Reading]]] = []
    is_open = False
    for number, (x, one) in enumerate(zip(at, row, strict=True)):
        if one is None:
            is_open = False
            continue
        if not (is_open and is_next[number]):
            areas.append([])
        areas[-1].append((x, one))
        is_open = True
    return "".join(_area(area, top) for area in areas if len(area) > 1)


def _area(area: Sequence[tuple[float, Reading]], top: float) -> str:
    over = "L".join(f"{x} {_y(one.greatest, top)}" for x, one in area)
    under = "L".join(f"{x} {_y(one.least, top)}" for x, one in reversed(area))
    return f"M{over}L{under}Z"


def _text(one: Reading | None, plan: _Plan, span: Span) -> str:
    if one is None:
        return "-"
    unit = " %" if plan.unit == "%" else ""
    if span.step_s <= _MINUTE_S or one.least == one.greatest:
        return f"{_number(one.mean, plan.digits)}{unit}"
    between = f"{_number(one.least, plan.digits)} to {_number(one.greatest, plan.digits)}"
    return f"{_number(one.mean, 1)}{unit} ({between})"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}".removesuffix(".0")


def _moment(unix_s: float) -> str:
    return clock(unix_s, day=True)[:-3]  # without seconds


def _title(plan: _Plan, point: pb.HistoryPoint, texts: Sequence[str]) -> str:
    names = [*(series.name for series in plan.series), *plan.more_columns]
    values = "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))
    return f"{_moment(point.time_unix_s)}: {values}"


def _label(plan: _Plan, readings: Iterable[Sequence[Reading | None]], span: Span) -> str:
    parts = []
    for series, row in zip(plan.series, readings, strict=True):
        found = [one for one in row if one is not None]
        if found:
            mean = math.fsum(one.mean for one in found) / len(found)
            parts.append(
                f"{series.name} {_number(found[-1].mean, 1)} last, {_number(mean, 1)} on average, "
                f"{_number(max(one.greatest for one in found), 1)} at most"
            )
    values = "; ".join(parts) or "no values"
    return (
        f"{plan.name}{f' in {plan.unit}' if plan.unit else ''}, last {span.name}: {values}. The "
        "table below has all values."
    )
