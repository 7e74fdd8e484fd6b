"""Picture of the switches' time line: an SVG, or a page with it that needs no network.

Each switch has a lane with the AllReduces that it computed, and each of its jobs one with all of
its AllReduces. A bar shows how it ran, a text in it the reason, and its tooltip the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from presage.collectives.arbiter.timeline.reason_texts import REASON_TEXTS, SHORT_REASONS
from presage.collectives.core.view import Reason
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.system.text.printable import printable

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _BAR = 1400, 190, 20, 58, 30, 20  # pixels
_LEAST_BAR, _LEAST_LABEL = 0.6, 22.0  # pixels
_MOST_BARS = 40_000
_TICKS = 10
_COLOURS = {pb.INC: "#0f8a5f", pb.RING: "#8d98a6", pb.REFUSED: "#c22f4e"}
_WAYS = {
    pb.INC: "on the switch",
    pb.RING: "by ring",
    pb.REFUSED: "refused by the switch, then by ring",
}
_JOB_COLOURS = ("#1f66ad", "#c2570c", "#a3218e", "#7a6a00", "#5a4fcf", "#0b7f92")
_STYLE = """
text { font: 12px system-ui, "Noto Sans", "DejaVu Sans", sans-serif; fill: #1b2430; }
.muted { fill: #5b6675; } .label { fill: #ffffff; font-size: 10px; pointer-events: none; }
.name { font-weight: 600; } .lane { fill: #f1f3f6; } .tick { stroke: #dde2e8; }
rect.bar:hover { stroke: #1b2430; stroke-width: 1.5; }
"""
_PAGE_STYLE = """
body { margin: 1.5rem auto; max-width: 1440px; padding: 0 1rem; background: #ffffff; color: #1b2430;
  font: 15px/1.5 system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .8rem; border-bottom: 1px solid #dde2e8; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


class _Lane(NamedTuple):
    """Row of the picture: colours are by job in the lane of a switch, else by way."""

    name: str
    rows: Sequence[pb.TimelineRow]
    is_switch: bool


class _Scale(NamedTuple):
    """Time before now at the left end, and seconds of the width."""

    oldest_s: float
    span_s: float

    def x(self, age_s: float) -> float:
        """Return the position of a time before now."""
        return _LEFT + (self.oldest_s - age_s) / self.span_s * (_WIDTH - _LEFT - _RIGHT)


def picture(found: pb.TimelineResponse, *, is_page: bool) -> str:
    """Return the time line as an SVG, or as an HTML page with it and a table of reasons."""
    drawn = _svg(found)
    if not is_page:
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn}'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Time line of switches</title><style>{_PAGE_STYLE}</style></head><body>"
        f"<h1>Time line of switches</h1>{drawn}{_reason_table(found)}</body></html>\n"
    )


def _svg(found: pb.TimelineResponse) -> str:
    rows = list(found.rows)[-_MOST_BARS:]
    lanes = list(_lanes(rows, [switch.name for switch in found.switches]))
    oldest_s = max((row.decision.age_s for row in rows), default=1.0)
    newest_s = min((row.decision.age_s - row.decision.duration_s for row in rows), default=0.0)
    scale = _Scale(oldest_s, max(oldest_s - newest_s, 1e-3))
    jobs = sorted({row.job for row in rows})
    height = _TOP + _LANE * max(len(lanes), 1) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'width="{_WIDTH}" height="{height}"><title>Time line of switches</title>'
        f"<style>{_STYLE}</style>",
        *_legend(),
        *_axis(scale, height),
    ]
    if not rows:
        parts.append(f'<text x="{_LEFT}" y="{_TOP + 20}">no AllReduce was reported</text>')
    for index, lane in enumerate(lanes):
        parts += _draw_lane(lane, _TOP + _LANE * index, scale, jobs)
    return "".join([*parts, "</svg>"])


def _lanes(rows: Sequence[pb.TimelineRow], switches: Sequence[str]) -> Iterator[_Lane]:
    for switch in switches:
        own = [row for row in rows if switch in row.switches]
        computed = [row for row in own if row.decision.way == pb.INC]
        yield _Lane(f"switch {switch}", computed, is_switch=True)
        for job in sorted({row.job for row in own}):
            yield _Lane(job, [row for row in own if row.job == job], is_switch=False)
    other = [row for row in rows if not set(row.switches) & set(switches)]
    for job in sorted({row.job for row in other}):
        yield _Lane(job, [row for row in other if row.job == job], is_switch=False)


def _draw_lane(lane: _Lane, y: float, scale: _Scale, jobs: Sequence[str]) -> Iterator[str]:
    weight = "name" if lane.is_switch else "muted"
    name = printable(lane.name, 26)
    yield f'<text class="{weight}" x="8" y="{y + 15}">{escape(name)}</text>'
    width = _WIDTH - _LEFT - _RIGHT
    yield f'<rect class="lane" x="{_LEFT}" y="{y}" width="{width}" height="{_BAR}"/>'
    for row in lane.rows:
        decision = row.decision
        left = scale.x(decision.age_s)
        wide = max(_LEAST_BAR, scale.x(decision.age_s - decision.duration_s) - left)
        colour = _COLOURS[decision.way]
        if lane.is_switch:
            colour = _JOB_COLOURS[jobs.index(row.job) % len(_JOB_COLOURS)]
        yield (
            f'<rect class="bar" x="{left:.2f}" y="{y}" width="{wide:.2f}" height="{_BAR}" '
            f"fill={quoteattr(colour)}><title>{escape(_tooltip(row))}</title></rect>"
        )
        if wide >= _LEAST_LABEL:
            text = row.job if lane.is_switch else SHORT_REASONS[Reason(decision.reason)]
            short = printable(text, max(2, int(wide / 6)))
            yield f'<text class="label" x="{left + 3:.2f}" y="{y + 14}">{escape(short)}</text>'


def _tooltip(row: pb.TimelineRow) -> str:
    one = row.decision
    return (
        f"{printable(row.job)}, AllReduce {one.number}, {one.size_bytes} bytes, "
        f"{1000 * one.duration_s:.3f} ms {_WAYS[one.way]}. Decision: "
        f"{REASON_TEXTS[Reason(one.reason)]}"
    )


def _legend() -> Iterator[str]:
    x = float(_LEFT)
    for way, text in _WAYS.items():
        yield f'<rect x="{x}" y="10" width="12" height="12" fill="{_COLOURS[way]}"/>'
        yield f'<text x="{x + 18}" y="20">{text}</text>'
        x += 60 + 6.5 * len(text)
    yield (
        f'<text class="muted" x="{x}" y="20">Lanes of switches: colours are jobs. '
        "Texts in bars: requirement that the decision follows from.</text>"
    )


def _axis(scale: _Scale, height: int) -> Iterator[str]:
    for index in range(_TICKS + 1):
        age_s = scale.oldest_s - scale.span_s * index / _TICKS
        x = scale.x(age_s)
        seconds = scale.span_s * index / _TICKS
        yield f'<line class="tick" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 24}"/>'
        text = f"{1000 * seconds:.0f} ms" if scale.span_s < 2 else f"{seconds:.1f} s"
        anchor = "end" if index == _TICKS else "middle"
        yield (
            f'<text class="muted" text-anchor="{anchor}" x="{x:.1f}" y="{height - 8}">{text}</text>'
        )


def _reason_table(found: pb.TimelineResponse) -> str:
    counts = Counter((row.job, row.decision.reason, row.decision.way) for row in found.rows)
    lines = [
        f"<tr><td>{escape(printable(job))}</td><td>{_WAYS[way]}</td>"
        f'<td>{escape(REASON_TEXTS[Reason(reason)])}</td><td class="number">{count}</td></tr>'
        for (job, reason, way), count in sorted(counts.items())
    ]
    head = "<tr><th>job</th><th>ran</th><th>decision</th><th>AllReduces</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"
