"""The gate: decides whether a challenger may be served and is better than the champion.

The gate is pure: it decides from the forecasts of both releases for the same held-out rows. A
*figure* is one metric of one predictor. Every rule must hold:

1. the challenger was trained on none of the held-out jobs;
2. no figure is worse than the champion's, over all rows or on any slice of them;
3. over all rows, at least one figure is better, or a new quantity is predicted;
4. the coverage of the 80 % and 90 % intervals is about nominal;
5. the latency of one row and the size of the files are within their bounds.

Without a comparable champion, rules 1, 4 and 5 decide.

Rules 2 and 3 with few jobs
---------------------------
A figure is *worse* (*better*) if it changes by more than its tolerance (``min_improvement``) and
the interval of its change (models/gate/paired_bootstrap.py) excludes the other direction. A table
has some hundred figures; five of a hundred 95 % intervals would report noise as a change. So the
error probability is divided equally among all figures (Bonferroni). Whatever the number of figures
and their correlation, the probability that an equally good challenger is called worse anywhere is
at most 1 - ``confidence``, and so is the probability that it is called better anywhere. Holm's
procedure is slightly more powerful but has no intervals to print with the verdicts.

A slice can reject a challenger but cannot promote it: a better forecast for one device is no reason
to change the forecasts of all others, while a worse one is a reason not to.

Rule 4 with few jobs
--------------------
Coverage on a handful of held-out jobs is noisy: with 20 jobs, a correct 90 % interval covers 16 or
fewer about once in eight times. The bounds are binomial quantiles: a release whose true coverage
is off by ``coverage_points`` violates them with probability ``coverage_risk`` on either side. They
tighten to nominal +- ``coverage_points`` with more jobs. The number of trials is the number of
jobs, not of rows, because errors of rows of one job are correlated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.gate.holdout_forecasts import Figures, ScoredRelease
from presage.models.gate.paired_bootstrap import (
    ALL_ROWS,
    Change,
    paired_changes,
)
from presage.models.release.manifest import job_digest

BETTER, WITHIN, WORSE = "better", "within", "worse"
OUT_OF_BOUNDS, TOO_SLOW, TOO_LARGE = "out of bounds", "too slow", "too large"
NOT_COMPARED = "not compared"
REJECTING_VERDICTS = (WORSE, OUT_OF_BOUNDS, TOO_SLOW, TOO_LARGE)
WHOLE_RELEASE = "release"  # in a row of the table, in place of a predictor

_ROUNDING = 1e-6  # of percentages, so that 14 of 15 jobs is not out of bounds by a last digit
_MAX_NAMED_JOBS = 3  # in a message

# Metrics that are compared with the champion's, and whether larger is better.
COMPARED_METRICS = {
    "mape": False,
    "median_ape": False,
    "within_10pct": True,
    "mae": False,
    "rmsle": False,
    "interval_width": False,
    "interval_score": False,
    "in_domain": True,
}
# More jobs in domain are not better forecasts; whether narrower intervals are better is measured by
# their score, which counts misses too.
NON_PROMOTING_METRICS = ("in_domain", "interval_width")


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """Thresholds of the gate, from the section ``promote`` of params.yaml.

    Attributes
    ----------
    tolerance : mapping of str to float
        For each metric of ``COMPARED_METRICS``, the largest relative deterioration.
    min_improvement : float
        Relative improvement that at least one figure must exceed.
    confidence : float
        Probability that no figure is called worse, and none better, if nothing changed.
    resamples, seed : int
        Number and seed of the bootstrap draws of held-out jobs.
    min_jobs : int
        Fewest held-out jobs of a slice.
    coverage_points : float
        Percentage points by which the true coverage of an interval may deviate.
    coverage_risk : float
        Probability, per bound, of rejecting a release with exactly that deviation.
    latency_us : float
        Largest latency of one row, in microseconds.
    latency_ratio : float
        Largest ratio to the champion's latency.
    latency_free_us : float
        Latency below which the ratio is ignored, because it would be noise of the timer.
    size_bytes : int
        Largest size of a release's files.
    size_ratio : float
        Largest ratio to the champion's size.
    """

    tolerance: Mapping[str, float]
    min_improvement: float
    confidence: float
    resamples: int
    seed: int
    min_jobs: int
    coverage_points: float
    coverage_risk: float
    latency_us: float
    latency_ratio: float
    latency_free_us: float
    size_bytes: int
    size_ratio: float

    def __post_init__(self) -> None:
        if set(self.tolerance) != set(COMPARED_METRICS):
            raise ValueError(
                f"promote.tolerance names {sorted(self.tolerance)}, must name "
                f"{sorted(COMPARED_METRICS)}; fix params.yaml"
            )
        for quantity in QUANTITIES.values():
            own = quantity.gate_tolerance
            if not (
                own.keys() <= set(COMPARED_METRICS) and all(value >= 0 for value in own.values())
            ):
                raise ValueError(
                    f"quantity {quantity.name!r}: gate_tolerance={dict(own)}, must be >= 0, with "
                    f"keys of {sorted(COMPARED_METRICS)}"
                )
        at_least_0 = {name: getattr(self, name) for name in ("min_improvement", "coverage_points")}
        for name, value in {**self.tolerance, **at_least_0}.items():
            if not value >= 0:
                raise ValueError(f"promote.{name}={value}, must be >= 0; fix params.yaml")
        if not 0 < self.coverage_risk < 0.5:
            raise ValueError(f"promote.coverage_risk={self.coverage_risk}, must be within (0, 0.5)")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"promote.confidence={self.confidence}, must be within [0.5, 1)")
        for name, least in (("resamples", 100), ("min_jobs", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"promote.{name}={getattr(self, name)}, must be >= {least}")

    def metric_tolerance(self, predictor: str, metric: str) -> float:
        """Return the tolerance of a metric: that of the quantity, else that of the policy."""
        quantity = QUANTITIES.get(predictor)
        own = {} if quantity is None else quantity.gate_tolerance
        return own.get(metric, self.tolerance[metric])


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the decision table: one figure and its verdict.

    Attributes
    ----------
    predictor : str
    slice_name : str
        Slice, such as ``device cpu-2``; "" for all rows.
    metric : str
    champion, challenger : float
        Figures of the two releases; None without a champion.
    change_low, change_high : float or None
        Interval of the change, relative to the champion's figure.
    at_least, at_most : float or None
        Bounds of the figure.
    verdict : str
    """

    predictor: str
    slice_name: str
    metric: str
    champion: float | None
    challenger: float
    change_low: float | None
    change_high: float | None
    at_least: float | None
    at_most: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of the gate: whether to promote, the reason, and the table of figures."""

    promote: bool
    reason: str
    rows: tuple[Row, ...]


def decide(
    champion: ScoredRelease | None, challenger: ScoredRelease, policy: GatePolicy
) -> Decision:
    """Decide whether to promote the challenger; both releases were scored on the same rows."""
    rows = tuple(_judge_figures(champion, challenger, policy))
    rejecting = [row for row in rows if row.verdict in REJECTING_VERDICTS]
    better = [row for row in rows if row.verdict == BETTER]
    unfit = _training_overlap(challenger) or _lost_quantities(champion, challenger)
    if unfit is not None:
        return Decision(False, unfit, rows)
    if rejecting:
        first = min(rejecting, key=_rejection_rank)
        more = f", and {len(rejecting) - 1} more" if len(rejecting) > 1 else ""
        return Decision(False, f"{_rejection_reason(first)}{more}", rows)
    if champion is None:
        reason = "no champion to compare with; coverage, latency and size are within bounds"
        return Decision(True, reason, rows)
    new = [name for name in challenger.predictors if name not in champion.predictors]
    if new and not better:
        return Decision(True, f"no figure is worse; new predictors: {', '.join(new)}", rows)
    if not better:
        reason = (
            f"no improvement: no figure is better by more than {100 * policy.min_improvement:g} % "
            f"with {100 * policy.confidence:g} % confidence"
        )
        return Decision(False, reason, rows)
    total = sum(row.change_low is not None and not row.slice_name for row in rows)
    slices = len({(row.predictor, row.slice_name) for row in rows if row.slice_name})
    first = min(better, key=lambda row: (row.metric != "mape", row.predictor))
    reason = (
        f"{len(better)} of {total} figures are better, none is worse, also on {slices} slices; "
        f"{_figure_name(first)}: {_format_number(first.champion)} -> "
        f"{_format_number(first.challenger)}"
    )
    return Decision(True, reason, rows)


def missed_limit(row: Row) -> tuple[float, str]:
    """Return the limit that a rejecting row misses, and the side: "under" or "over" it."""
    if row.at_least is not None and row.challenger < row.at_least:
        return row.at_least, "under"
    return math.inf if row.at_most is None else row.at_most, "over"


def miss(row: Row) -> float | None:
    """Return by how much a rejecting row misses its limit, relative to it; None if that is 0."""
    limit, _ = missed_limit(row)
    return abs(row.challenger / limit - 1) if limit and math.isfinite(limit) else None


def _lost_quantities(champion: ScoredRelease | None, challenger: ScoredRelease) -> str | None:
    """Return why a release that predicts fewer quantities is rejected; None for others."""
    if champion is None:
        return None
    before, now = ((one.unscored | one.predictors.keys()) for one in (champion, challenger))
    if not (lost := sorted(before - now)):
        return None
    return (
        f"the release does not predict {', '.join(lost)}, which the champion does; train it with "
        "rows that have the measurement"
    )


def judged_jobs_in_training(scored: ScoredRelease) -> list[str]:
    """Return the held-out jobs that a release was trained on."""
    trained_on = scored.trained_on or frozenset()
    return [job for job in scored.judged_jobs() if job_digest(job) in trained_on]


def coverage_bounds(nominal: float, jobs: int, policy: GatePolicy) -> tuple[float, float]:
    """Return the bounds of the coverage, in percent, on ``jobs`` held-out jobs."""
    deviation = policy.coverage_points / 100
    fewest = _binomial_quantile(jobs, max(nominal - deviation, 0.0), policy.coverage_risk)
    most = _binomial_quantile(jobs, min(nominal + deviation, 1.0), 1 - policy.coverage_risk)
    return 100 * fewest / jobs, 100 * most / jobs


def _training_overlap(challenger: ScoredRelease) -> str | None:
    """Return why these held-out jobs cannot evaluate the challenger; None if they can."""
    if challenger.trained_on is None:
        return (
            "the release does not record its training jobs, so they may include held-out jobs; "
            "rebuild it with `dvc repro`"
        )
    if not (overlap := judged_jobs_in_training(challenger)):
        return None
    names = ", ".join(overlap[:_MAX_NAMED_JOBS])
    more = ", ..." if len(overlap) > _MAX_NAMED_JOBS else ""
    return (
        f"the release was trained on {len(overlap)} of the {len(challenger.judged_jobs())} "
        f"held-out jobs: {names}{more}"
    )


def _judge_figures(
    champion: ScoredRelease | None, challenger: ScoredRelease, policy: GatePolicy
) -> Iterator[Row]:
    """Yield the rows of the decision table, those of slices last."""
    before = {} if champion is None else champion.figures()
    compared = [] if champion is None else _compare_releases(champion, challenger, policy)
    risk = (1 - policy.confidence) / max(len(compared), 1)
    for predictor, figures in challenger.figures().items():
        old = before.get(predictor, {})
        changed = {c.metric: c for c in compared if (c.predictor, c.slice_name) == (predictor, "")}
        for metric, value in figures.items():
            if metric in changed:
                yield _judge_change(changed[metric], risk, policy)
            elif _tolerance_key(metric) in COMPARED_METRICS:
                yield _make_row(predictor, metric, old.get(metric), value, None, None, NOT_COMPARED)
            elif metric.startswith("coverage_"):
                yield _judge_coverage(predictor, metric, old.get(metric), figures, policy)
            elif metric == "latency_us":
                yield _judge_latency(predictor, old.get(metric), value, policy)
    yield _judge_size(champion, challenger, policy)
    yield from (_judge_change(change, risk, policy) for change in compared if change.slice_name)


def _compare_releases(
    champion: ScoredRelease, challenger: ScoredRelease, policy: GatePolicy
) -> list[Change]:
    return list(
        paired_changes(
            champion.predictors,
            challenger.predictors,
            resamples=policy.resamples,
            seed=policy.seed,
            min_jobs=policy.min_jobs,
        )
    )


def _judge_change(change: Change, risk: float, policy: GatePolicy) -> Row:
    """Compare a figure with the champion's: worse or better beyond chance and tolerance."""
    family = _tolerance_key(change.metric)
    old, larger_is_better = change.champion, COMPARED_METRICS[family]
    low, high = change.interval(risk)
    slack = policy.metric_tolerance(change.predictor, family) * abs(old)
    at_least, at_most = (old - slack, None) if larger_is_better else (None, old + slack)
    gain, worst_gain = (change.rise, low) if larger_is_better else (-change.rise, -high)
    best_gain = high if larger_is_better else -low
    can_promote = change.slice_name == ALL_ROWS and family not in NON_PROMOTING_METRICS
    verdict = WITHIN
    if gain < -slack and best_gain < 0:
        verdict = WORSE
    elif can_promote and gain > policy.min_improvement * abs(old) and worst_gain > 0:
        verdict = BETTER
    scale = abs(old) or math.nan
    return Row(
        change.predictor, change.slice_name, change.metric, old, change.challenger,
        low / scale, high / scale, at_least, at_most, verdict,
    )  # fmt: skip


def _judge_coverage(
    predictor: str, metric: str, old: float | None, figures: Figures, policy: GatePolicy
) -> Row:
    nominal = float(metric.removeprefix("coverage_").rstrip("%")) / 100
    low, high = coverage_bounds(nominal, int(figures["jobs"]), policy)
    is_within = low - _ROUNDING <= figures[metric] <= high + _ROUNDING
    verdict = WITHIN if is_within else OUT_OF_BOUNDS
    return _make_row(predictor, metric, old, figures[metric], low, high, verdict)


def _judge_latency(predictor: str, old: float | None, new: float, policy: GatePolicy) -> Row:
    at_most = policy.latency_us
    if old is not None:
        at_most = min(at_most, max(policy.latency_ratio * old, policy.latency_free_us))
    verdict = WITHIN if new <= at_most else TOO_SLOW
    return _make_row(predictor, "latency_us", old, new, None, at_most, verdict)


def _judge_size(
    champion: ScoredRelease | None, challenger: ScoredRelease, policy: GatePolicy
) -> Row:
    old = None if champion is None else champion.size_bytes
    at_most: float = policy.size_bytes
    if old is not None:
        at_most = min(at_most, policy.size_ratio * old)
    new = challenger.size_bytes
    verdict = WITHIN if new <= at_most else TOO_LARGE
    return _make_row(WHOLE_RELEASE, "size_bytes", old, new, None, at_most, verdict)


def _make_row(
    predictor: str,
    metric: str,
    old: float | None,
    new: float,
    at_least: float | None,
    at_most: float | None,
    verdict: str,
) -> Row:
    """Return a row over all rows, without an interval of the change."""
    return Row(predictor, ALL_ROWS, metric, old, new, None, None, at_least, at_most, verdict)


def _rejection_rank(row: Row) -> tuple[bool, float]:
    """Sort key of rejecting rows: figures over all rows first, then the worst slices."""
    if not row.slice_name or not row.champion:
        return bool(row.slice_name), 0.0
    return True, -abs(row.challenger / row.champion - 1)


def _rejection_reason(row: Row) -> str:
    """Return why a row rejects, without microseconds, which differ from run to run."""
    what = _figure_name(row)
    if row.verdict == TOO_SLOW:
        return f"{row.predictor} is too slow"
    limit, side = missed_limit(row)
    bound = "at least {} is required" if side == "under" else "at most {} is allowed"
    return f"{what} is {_format_number(row.challenger)}, {bound.format(_format_number(limit))}"


def _figure_name(row: Row) -> str:
    """Return the name of a figure, with its slice."""
    return f"{row.predictor} {row.metric}" + (f" on {row.slice_name}" if row.slice_name else "")


def _tolerance_key(metric: str) -> str:
    """Return the metric whose tolerance applies: intervals of all coverages share one."""
    for name in ("interval_width", "interval_score"):
        if metric.startswith(name):
            return name
    return metric


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _binomial_quantile(trials: int, p: float, probability: float) -> int:
    """Return the smallest count whose cumulative probability is at least ``probability``."""
    if p in (0.0, 1.0):
        return round(trials * p)
    below = 0.0
    for count in range(trials + 1):
        log_ways = (
            math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        )
        below += math.exp(log_ways + count * math.log(p) + (trials - count) * math.log1p(-p))
        if below >= probability:
            return count
    return trials
