"""Coverage of intervals where something is new, written to docs/benchmarks/intervals.md.

Run ``python -m benchmarks.predictors.intervals [TITLE...]``; titles select questions, whose figures
are then printed only. It takes two minutes on one core. Each value of a split is left out in turn,
and its rows get margins that are computed from the rows of all other values, by several methods.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from presage.features.columns.schema import matrix
from presage.features.job.job_table import precision_codes
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import COMPUTE_UTILIZATION, MEMORY, STEP_TIME
from presage.models.calibration.conformal import conformal_margin
from presage.models.calibration.group_margins import group_margin
from presage.models.calibration.training_domain import fit_domain
from presage.models.training.fit import LEVELS, FitConfig
from presage.models.training.splits import Folds
from presage.pipelines.benchmark.benchmark_rows import Rows
from presage.pipelines.benchmark.benchmark_splits import split_folds
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.benchmark.solo import SoloTask
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.stages.train import make_torch_deterministic
from presage.system.arrays import Array, Mask, Names

PAGE = Path("docs/benchmarks/intervals.md")
OWN = ("data/profiles/cpu-2", "data/profiles/cpu-2-zoo")
COVERAGES = (0.8, 0.9)
MIN_ROWS = 15  # of a value that counts: ten points of standard error at 80 %
MIN_SIMILAR = 20  # rows out of domain that are needed for margins of their own
MEDIAN = LEVELS.index(0.5)


@dataclass(frozen=True)
class Question:
    """Table, and the column by whose values it is divided; ``near`` is the split for comparison."""

    title: str
    quantity: Quantity
    files: tuple[str, ...]
    split: str
    near: str = "job"


QUESTIONS = (
    Question("Step time, two CPU cores", STEP_TIME, OWN, "group"),
    Question("Memory, two CPU cores", MEMORY, OWN, "group"),
    Question("Utilization, two CPU cores", COMPUTE_UTILIZATION, OWN, "group"),
)
# As in params.yaml for hundreds of rows.
SMALL = FitConfig(
    hidden=32, steps=600, learning_rate=0.01, weight_decay=3.0, ensemble=2, seed=0, batch=1024,
    jitter=0.3,
)  # fmt: skip

INTRODUCTION = """\
How often intervals hold for architectures that were not in training, and how wide they are there.
Written by `python -m benchmarks.predictors.intervals`, seed 0, from the committed campaigns on two
CPU cores. Each [architecture group](../../features/job/architecture_groups.py) is left out in turn.
Its rows are predicted by networks that were not trained on it, and get margins from the rows of all
other groups, which were left out likewise. The networks that predicted these other rows were
trained on the group in question, because leaving out two at once would take the square of the time.

- **near split**: margins from left-out jobs, as releases had them before
  [decision 60](../decisions/0060-calibrate-intervals-on-groups-that-were-left-out.md).
- **left-out rows**: margins from rows of the other groups, every row alike.
- **groups alike**: every group alike, and one more, the unseen one, above all scores.
- **median of groups**, **80 % of groups**: the median or 80 % quantile of the groups' own margins.
- **random effect**: a deviation of the new group is drawn from Student's distribution.
- **as served**: groups alike for rows that are out of domain without their group, calibrated on
  such rows of other groups; the near split for all others.

The median and the worst are over groups with at least 15 rows. Width is the median width of the
80 % interval, in units of that of left-out jobs by margins from the near split: what an interval
costs where something is new. Where nothing is new, only jobs out of domain have wider intervals.
The goals are 75 to
85 % in the median and at least 65 % in the worst case for 80 % intervals, and at least 80 % in the
worst case for 90 % intervals.

The settings of the networks are those of `params.yaml`, which were chosen on these campaigns by job
and family, not by group and not on inner folds. The method was chosen by the figures on this page.
It does not have slowdowns, and no GPU, release or source that is left out."""
VALUES = """\
As served. The last columns have the share of rows that are out of domain, without their group and
without their job."""
RISK = """\
Schedulers pack jobs by the upper end of the memory interval. The share of rows above each quantile,
which should be 5, 10 and 50 %:"""

# Margin by target, lower and upper quantile and group of the calibration rows, and coverage.
Method = Callable[[Array, Array, Array, Names, float], float]


def by_row(y: Array, low: Array, high: Array, _groups: Names, coverage: float) -> float:
    """Return the margin over all left-out rows: large groups count more."""
    return conformal_margin(y, low, high, coverage=coverage)


def by_group(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the margin that releases have for rows out of domain."""
    return group_margin(y, low, high, groups, coverage=coverage)


def median_group(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the median over groups of the margin of each group."""
    return float(np.median(_own_margins(y, low, high, groups, coverage)))


def upper_group(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the margin that 80 % of the groups' own margins are below."""
    return float(np.quantile(_own_margins(y, low, high, groups, coverage), 0.8))


def random_effect(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> float:
    """Return the margin if a normal deviation of the group is drawn anew for each row.

    Its variance is that of the groups' median errors, its distribution Student's with one degree of
    freedom less than there are groups.
    """
    from scipy.stats import t

    names, position = np.unique(groups, return_inverse=True)
    middle = (low + high) / 2
    off = np.array([np.median((y - middle)[position == i]) for i in range(len(names))])
    free = max(len(names) - 1, 1)
    spread = off.std(ddof=1) if len(names) > 1 else 0.0
    drawn = t.ppf((np.arange(51) + 0.5) / 51, free) * spread * np.sqrt(1 + 1 / len(names))
    moved = (y - off[position])[:, None] + drawn
    scores = np.maximum(low[:, None] - moved, moved - high[:, None])
    count = np.bincount(position)[position]
    weights = np.repeat(1 / (len(names) * count * len(drawn)), len(drawn))
    order = np.argsort(scores, axis=None, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weights[order]), coverage - 1e-9))
    return float(scores.ravel()[order][min(reached, scores.size - 1)])


def _own_margins(y: Array, low: Array, high: Array, groups: Names, coverage: float) -> Array:
    scores = np.maximum(low - y, y - high)
    return np.array([np.quantile(scores[groups == one], coverage) for one in np.unique(groups)])


NEAR, SERVED = "near split", "as served"
METHODS: Mapping[str, Method] = {
    "left-out rows": by_row,
    "groups alike": by_group,
    "median of groups": median_group,
    "80 % of groups": upper_group,
    "random effect": random_effect,
}


@dataclass(frozen=True)
class Found:
    """Coverage of each left-out value by method, in per cent, and the median width of intervals.

    ``coverage`` is by method and nominal coverage, with one number for each of ``names``; ``width``
    of the 80 % interval is by method, in units of that of the near split. ``above`` is by method
    the share of rows above the 95 %, the 90 % quantile and the median, and ``new`` that of rows
    out of domain by split, in per cent.
    """

    question: Question
    names: Sequence[str]
    rows: Sequence[int]
    coverage: Mapping[tuple[str, float], Array]
    width: Mapping[str, float]
    above: Mapping[str, Sequence[float]]
    new: Mapping[str, float]


def answer(question: Question) -> Found:
    """Leave out each value of the split, and calibrate it by the others."""
    make_torch_deterministic()
    quantity = question.quantity
    task = SoloTask(quantity, lambda job: True, quantity.unit, config=SMALL)
    rows = task.rows(read_tables(list(map(Path, question.files)), GraphCache()))
    rows = rows.take(np.isfinite(rows.measured))
    y, far = task.left_out_quantiles(rows, question.split, seed=0, progress=_silent)
    _, near = task.left_out_quantiles(rows, question.near, seed=0, progress=_silent)
    groups = rows.metadata[question.split].to_numpy(object)
    new = {
        name: out_of_domain(rows, split_folds(rows.metadata, name, seed=0))
        for name in (question.split, question.near)
    }
    return compare(question, y, far, near, groups, new)


def out_of_domain(rows: Rows, folds: Folds) -> Mask:
    """Return which rows are outside the training domain of the other folds."""
    features = matrix(rows.placements, "full")
    precisions = [placement.job.job.precision for placement in rows.placements]
    codes = precision_codes(precisions)
    out = np.zeros(len(rows), dtype=bool)
    for fold in np.unique(folds):
        test = folds == fold
        models = list(rows.metadata["model"][~test])
        domain = fit_domain(features[~test], models, [precisions[i] for i in np.flatnonzero(~test)])
        out[test] = ~domain.contains(features[test], codes[test])
    return out


def compare(
    question: Question, y: Array, far: Array, near: Array, groups: Names, new: Mapping[str, Mask]
) -> Found:
    """Return the coverage of each group by margins from the other groups.

    ``new`` are the rows out of domain, by split.
    """
    names, count = np.unique(groups, return_counts=True)
    coverage: dict[tuple[str, float], Array] = {}
    widths: dict[str, float] = {}
    above: dict[str, list[float]] = {name: [] for name in (NEAR, *METHODS, SERVED)}
    is_new = new[question.split]
    for nominal in COVERAGES:
        low = LEVELS.index(round((1 - nominal) / 2, 6))
        ends = far[:, low], far[:, -1 - low]
        of_near = conformal_margin(y, near[:, low], near[:, -1 - low], coverage=nominal)
        margins = {name: np.empty(len(y)) for name in (*METHODS, SERVED)}
        margins[NEAR] = np.full(len(y), of_near)
        for group in names:
            own, others = groups == group, groups != group
            for name, method in METHODS.items():
                margins[name][own] = _margin(
                    method, y[others], far[others], groups[others], nominal
                )
            similar = others & is_new
            if similar.sum() < MIN_SIMILAR:
                similar = others
            wider = _margin(by_group, y[similar], far[similar], groups[similar], nominal)
            margins[SERVED][own] = np.where(is_new[own], max(of_near, wider), of_near)
        for name, margin in margins.items():
            inside = (ends[0] - margin <= y) & (y <= ends[1] + margin)
            coverage[name, nominal] = np.array([100 * inside[groups == g].mean() for g in names])
            above[name].insert(0, 100 * float((y > ends[1] + margin).mean()))
            if nominal == COVERAGES[0]:
                unit = np.median(near[:, -1 - low] - near[:, low] + 2 * of_near)
                widths[name] = float(np.median(ends[1] - ends[0] + 2 * margin) / unit)
    middle = 100 * float((y > far[:, MEDIAN]).mean())
    risks = {name: (*found, middle) for name, found in above.items()}
    shares = {name: 100 * float(found.mean()) for name, found in new.items()}
    return Found(question, list(map(str, names)), count.tolist(), coverage, widths, risks, shares)


def _margin(method: Method, y: Array, far: Array, groups: Names, coverage: float) -> float:
    """Return the margin of the interval with this coverage; ``far`` has shape (rows, levels)."""
    low = LEVELS.index(round((1 - coverage) / 2, 6))
    return method(y, far[:, low], far[:, -1 - low], groups, coverage)


def _silent(done: int, total: int) -> None:
    pass


def lines_of(found: Found) -> list[str]:
    """Return the table's lines of one question, one for each method."""
    shown = np.array(found.rows) >= MIN_ROWS
    lines = []
    for name in (NEAR, *METHODS, SERVED):
        cells = [found.question.title, found.question.split, str(int(shown.sum())), name]
        for nominal in COVERAGES:
            here = found.coverage[name, nominal][shown]
            worst = np.array(found.names)[shown][here.argmin()]
            cells += [f"{np.median(here):.0f}", f"{here.min():.0f} ({worst})"]
        lines.append(f"| {' | '.join([*cells, f'{found.width[name]:.2f}'])} |")
    return lines


def page(found: Sequence[Found]) -> list[str]:
    """Return the page's lines."""
    return [
        "# Intervals where something is new",
        "",
        INTRODUCTION,
        "",
        "## Coverage",
        "",
        "| what | left out | values | margins from | 80 % covers, median | worst | 90 % covers, "
        "median | worst | width |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|",
        *(line for one in found for line in lines_of(one)),
        "",
        "## Coverage of each value",
        "",
        VALUES,
        "",
        "| what | 80 / 90 % interval covers (rows) | out of domain by group | by job |",
        "|---|---|---:|---:|",
        *(f"| {one.question.title} | {_values(one)} | {_shares(one)} |" for one in found),
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
    both = (found.coverage[SERVED, nominal] for nominal in COVERAGES)
    parts = zip(found.names, found.rows, *both, strict=True)
    return "; ".join(f"{name} {a:.0f} / {b:.0f} ({rows})" for name, rows, a, b in parts)


def _shares(found: Found) -> str:
    splits = found.question.split, found.question.near
    return " | ".join(f"{found.new[split]:.0f} %" for split in splits)


def _risks(found: Found) -> list[str]:
    """Return the lines of the observed risks, one for each of three methods."""
    title, split = found.question.title, found.question.split
    return [
        f"| {title} | {split} | {name} | "
        + " | ".join(f"{risk:.1f} %" for risk in found.above[name])
        + " |"
        for name in (NEAR, "groups alike", SERVED)
    ]


def main() -> None:
    """Write the page, or print the tables of the questions whose titles are given."""
    titles = sys.argv[1:]
    found = []
    for question in QUESTIONS:
        if titles and question.title not in titles:
            continue
        found.append(answer(question))
        sys.stderr.write("\n".join(lines_of(found[-1])) + "\n")
    lines = page(found)
    if titles:
        print("\n".join(lines))
    else:
        PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
