"""Lines of docs/benchmarks/intervals.md."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.intervals.coverage import NARROW, NEAR, SERVED, WIDE, Found, Known
from benchmarks.intervals.methods import METHODS

MIN_ROWS = 15  # of a value that counts: ten points of standard error at 80 %
INTRODUCTION = """\
How often intervals hold where the architecture or the device was not in training, and how wide they
are there. Written by `python -m benchmarks.intervals DATASETS`, seed 0,
from the committed campaigns on two CPU cores and from public tables. Each value of a split is left
out in turn: each [architecture group](../../features/job/architecture_groups.py) or device. Its
rows are predicted by networks that were not trained on it, and get margins
from the rows of all other values, which were left out likewise. The networks that predicted these
other rows were trained on the value in question, because leaving out two at once would take the
square of the time.

- **near split**: margins from left-out jobs (of co-locations: left-out pairs), as releases had them
  before [decision 60](../decisions/0060-calibrate-intervals-on-groups-that-were-left-out.md).
- **left-out rows**: margins from rows of the other values, every row alike.
- **groups alike**: every value alike, and one more, the unseen one, above all scores.
- **median of groups**, **80 % of groups**: the median or 80 % quantile of the values' own margins.
- **random effect**: a deviation of the new value is drawn from Student's distribution.
- **as served**: the margins that training computes from the other values, by the same code. A row
  gets those for its new device, its new release, and a new job if it is not near the training
  domain; the largest counts. A row with none of them gets margins from left-out jobs.

The median and the worst are over values with at least 15 rows. Width is the median width of the
80 % interval, in units of that of left-out jobs by margins from the near split: what an interval
costs where something is new. The goals are 75 to 85 % in the median and at least 65 % in the worst
case for 80 % intervals, and at least 80 % in the worst case for 90 % intervals. [Decision
60](../decisions/0060-calibrate-intervals-on-groups-that-were-left-out.md) lists where they are
missed."""
SETTINGS = """\
The settings of the networks are those of `params.yaml` and of `presage benchmark`, which were
chosen on these tables by job, model and family, not on inner folds; public tables have one network
instead of three for each part, and slowdowns 400 steps instead of 500, to save time. Methods and
the near radius were chosen on the committed campaigns; slowdowns and public tables took no part in
it."""
KNOWN = """\
Rows of which only the job is new, as served, with all other groups, devices and releases in
training. Width is the mean over rows, in units of the same intervals without widening (goal 1.15).
In co-locations nothing is new: each pair is left out, while its jobs stay in training."""
VALUES = "As served: 80 / 90 % interval covers (rows)."
RISK = """\
Schedulers pack jobs by the upper end of the memory interval. The share of rows above each quantile
should be 5, 10 and 50 %. Memory is of two CPU cores here. On a GPU, the memory of families that
were not in training exceeds the 90 % quantile more than twice as often as it should ([value of
forecasts](forecast_worth.md#accepted-and-observed-risk)):"""


def lines_of(found: Found) -> list[str]:
    """Return the table's lines of one split, one for each method."""
    shown = np.array(found.rows) >= MIN_ROWS
    lines = []
    for name in (NEAR, *METHODS, SERVED):
        cells = [found.title, found.split, str(int(shown.sum())), name]
        for level in (NARROW, WIDE):
            here = found.coverage[name, level][shown]
            worst = np.array(found.names)[shown][here.argmin()]
            cells += [f"{np.median(here):.0f}", f"{here.min():.0f} ({worst})"]
        lines.append(f"| {' | '.join([*cells, f'{found.width[name]:.2f}'])} |")
    return lines


def page(found: Sequence[Found], known: Sequence[Known]) -> list[str]:
    """Return the page's lines."""
    return [
        "# Intervals where something is new",
        "",
        INTRODUCTION,
        "",
        SETTINGS,
        "",
        "## Coverage",
        "",
        "| what | left out | values | margins from | 80 % covers, median | worst | 90 % covers, "
        "median | worst | width |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|",
        *(line for one in found for line in lines_of(one)),
        "",
        "## Where nothing but the job is new",
        "",
        KNOWN,
        "",
        "| what | rows | not near training | 80 % covers | 90 % covers | width |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {one.title} | {one.rows} | {one.new:.0f} % | {one.coverage[NARROW]:.0f} "
            f"| {one.coverage[WIDE]:.0f} | {one.width:.2f} |"
            for one in known
        ),
        "",
        "## Coverage of each value",
        "",
        VALUES,
        "",
        "| what | left out | rows not near training | coverage |",
        "|---|---|---:|---|",
        *(f"| {one.title} | {one.split} | {one.new:.0f} % | {_values(one)} |" for one in found),
        "",
        "## Risk of an upper bound",
        "",
        RISK,
        "",
        "| what | left out | margins from | above the 95 % quantile | above the 90 % quantile "
        "| above the median |",
        "|---|---|---|---:|---:|---:|",
        *(line for one in found for line in _risks(one)),
    ]


def _values(found: Found) -> str:
    both = (found.coverage[SERVED, level] for level in (NARROW, WIDE))
    parts = zip(found.names, found.rows, *both, strict=True)
    return "; ".join(f"{name} {a:.0f} / {b:.0f} ({rows})" for name, rows, a, b in parts)


def _risks(found: Found) -> list[str]:
    """Return the lines of the observed risks, one for each of three methods."""
    return [
        f"| {found.title} | {found.split} | {name} | "
        + " | ".join(f"{risk:.1f} %" for risk in found.above[name])
        + " |"
        for name in (NEAR, "groups alike", SERVED)
    ]
