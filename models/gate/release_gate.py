"""The gate: whether a challenger is good enough to serve, and surely better than the champion.

Pure: what both releases said of the same held-out rows in, a decision out. Every rule must hold:

1. the challenger was trained on none of the jobs that it is judged by;
2. no figure is worse than the champion's, over all rows or on any slice of them;
3. over all rows, at least one is better, or a quantity is predicted that was not before;
4. the 80 % and 90 % intervals cover about as often as they say;
5. one row is answered within the latency bound, and the files are within the size bound.

Without a champion that can be compared, 1, 4 and 5 decide alone.

Rules 2 and 3 on few jobs
-------------------------
A figure is *worse* (*better*) if it is so by more than its tolerance (``min_improvement``) and if
the interval of its change (models/gate/paired_bootstrap.py) leaves no doubt of the direction. A
table has some hundred figures: of as many intervals that hold 95 % each, five would call noise a
change. So the chance of an error is shared out among all of them, equally (Bonferroni): whatever
the number of figures and however they hang together, the chance that an equally good challenger is
called worse anywhere is at most 1 - ``confidence``, and so is the chance that it is called better
anywhere. Holm's procedure would find a little more, but has no intervals to print beside its
verdicts.

A slice can refuse and cannot promote: that one device is forecast better is no reason to change
the rest, while one that is forecast worse is a reason not to.

Rule 4 on few jobs
------------------
Coverage on a handful of held-out jobs is noisy: of 20 jobs, an honest 90 % interval covers 16 or
fewer about once in eight times. So the bounds are those that a release, whose true coverage is just
``coverage_points`` off, would break with probability ``coverage_risk`` on either side: quantiles
of a binomial distribution. They tighten to nominal +- ``coverage_points`` as jobs are added. The
number of trials is that of jobs, not of rows: rows of one job err together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from presage.features.quantities.registry import QUANTITIES
from presage.models.gate.holdout_forecasts import Figures, ScoredRelease
from presage.models.gate.paired_bootstrap import ALL_ROWS, Change, paired_changes
from presage.models.release.manifest import job_digest

BETTER, WITHIN, WORSE = "better", "within", "worse"
OUT_OF_BOUNDS, TOO_SLOW, TOO_LARGE = "out of bounds", "too slow", "too large"
NOT_COMPARED = "not compared"
REJECTING_VERDICTS = (WORSE, OUT_OF_BOUNDS, TOO_SLOW, TOO_LARGE)
WHOLE_RELEASE = "release"  # in a row of the table, in place of a predictor

_ROUNDING = 1e-6  # of percentages: 14 of 15 jobs is not out of bounds by a last digit
_MAX_NAMED_JOBS = 3  # jobs of many that a message names

# Metrics that are compared with the champion's, and whether more is better.
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
# To vouch for more jobs is not to forecast them better, and whether narrower intervals are better
# their score says, which counts the misses too.
NON_PROMOTING_METRICS = ("in_domain", "interval_width")


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the gate lets through; from the section ``promote`` of params.yaml.

    Attributes
    ----------
    tolerance : mapping of str to float
        Per metric of COMPARED, how much worse than the champion's it may be, relatively.
    min_improvement : float
        How much better, relatively, at least one figure must be.
    confidence : float
        That no figure at all is called worse, and none better, where nothing changed.
    resamples, seed : int
        Draws of the held-out jobs that tell how sure a change is.
    min_jobs : int
        Fewer held-out jobs make no slice.
    coverage_points : float
        Percent points that an interval's coverage may truly be off.
    coverage_risk : float
        Chance, per bound, of refusing a release that is off by just that.
    latency_us : float
        Most microseconds that one row may take.
    latency_ratio : float
        Most times the champion's latency that it may take.
    latency_free_us : float
        Below this the ratio is not asked: it would be the timer's noise.
    size_bytes : int
        Most bytes that a release's files may have.
    size_ratio : float
        Most times the champion's bytes.
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
                f"{sorted(COMPARED_METRICS)}; mend params.yaml"
            )
        for quantity in QUANTITIES.values():
            own = quantity.gate_tolerance
            if not (
                own.keys() <= set(COMPARED_METRICS) and all(value >= 0 for value in own.values())
            ):
                raise ValueError(
                    f"quantity {quantity.name!r}: gate_tolerance={dict(own)}, must be >= 0 and "
                    f"name some of {sorted(COMPARED_METRICS)}"
                )
        at_least_0 = {name: getattr(self, name) for name in ("min_improvement", "coverage_points")}
        for name, value in {**self.tolerance, **at_least_0}.items():
            if not value >= 0:
                raise ValueError(f"promote.{name}={value}, must be >= 0; mend params.yaml")
        if not 0 < self.coverage_risk < 0.5:
            raise ValueError(f"promote.coverage_risk={self.coverage_risk}, must be within (0, 0.5)")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"promote.confidence={self.confidence}, must be within [0.5, 1)")
        for name, least in (("resamples", 100), ("min_jobs", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"promote.{name}={getattr(self, name)}, must be >= {least}")

    def metric_tolerance(self, predictor: str, metric: str) -> float:
        """Return how much worse a metric may be, by the quantity or else by the policy."""
        quantity = QUANTITIES.get(predictor)
        own = {} if quantity is None else quantity.gate_tolerance
        return own.get(metric, self.tolerance[metric])


@dataclass(frozen=True, slots=True)
class Row:
    """One figure that was judged.

    Attributes
    ----------
    slice_name : str
        Such as ``device cpu-2``; "" of all rows.
    change_low, change_high : float or None
        Interval of the challenger's figure less the champion's, relative to the champion's.
    at_least, at_most : float or None
        What the figure was held to.
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
    """Whether to promote, why, and the table it was decided by."""

    promote: bool
    reason: str
    rows: tuple[Row, ...]


def decide(
    champion: ScoredRelease | None, challenger: ScoredRelease, policy: GatePolicy
) -> Decision:
    """Whether the challenger becomes champion; both were scored on the same rows."""
    rows = tuple(_judge_figures(champion, challenger, policy))
    refused = [row for row in rows if row.verdict in REJECTING_VERDICTS]
    better = [row for row in rows if row.verdict == BETTER]
    if (complaint := _training_overlap(challenger)) is not None:
        return Decision(False, complaint, rows)
    if refused:
        first = min(refused, key=_rejection_rank)
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        return Decision(False, f"{_rejection_reason(first)}{more}", rows)
    if champion is None:
        reason = "no champion to compare with; coverage, latency and size in bounds"
        return Decision(True, reason, rows)
    new = [name for name in challenger.predictors if name not in champion.predictors]
    if new and not better:
        return Decision(True, f"nothing is worse; it predicts {', '.join(new)} as well", rows)
    if not better:
        reason = (
            f"no improvement: no figure is better by more than {100 * policy.min_improvement:g} % "
            f"and beyond chance ({100 * policy.confidence:g} % sure)"
        )
        return Decision(False, reason, rows)
    whole = sum(row.change_low is not None and not row.slice_name for row in rows)
    slices = len({(row.predictor, row.slice_name) for row in rows if row.slice_name})
    first = min(better, key=lambda row: (row.metric != "mape", row.predictor))
    reason = (
        f"{len(better)} of {whole} figures are better, none is worse, nor on any of {slices} "
        f"slices; {_figure_name(first)} {_format_number(first.challenger)} after {_format_number(first.champion)}"
    )
    return Decision(True, reason, rows)


def judged_jobs_in_training(scored: ScoredRelease) -> list[str]:
    """Jobs that a release is judged by and was trained on."""
    trained_on = scored.trained_on or frozenset()
    return [job for job in scored.judged_jobs() if job_digest(job) in trained_on]


def coverage_bounds(nominal: float, jobs: int, policy: GatePolicy) -> tuple[float, float]:
    """Lowest and highest coverage, in percent, that ``jobs`` held-out jobs may show."""
    off = policy.coverage_points / 100
    fewest = _binomial_quantile(jobs, max(nominal - off, 0.0), policy.coverage_risk)
    most = _binomial_quantile(jobs, min(nominal + off, 1.0), 1 - policy.coverage_risk)
    return 100 * fewest / jobs, 100 * most / jobs


def _training_overlap(challenger: ScoredRelease) -> str | None:
    """Why it may not be judged by these jobs, None where it may."""
    if challenger.trained_on is None:
        return (
            "it does not say which jobs it was trained on, so nobody can tell whether it has seen "
            "those that it is judged by; make it again with `dvc repro`"
        )
    if not (seen := judged_jobs_in_training(challenger)):
        return None
    named = ", ".join(seen[:_MAX_NAMED_JOBS]) + (", ..." if len(seen) > _MAX_NAMED_JOBS else "")
    return (
        f"it was trained on {len(seen)} of the {len(challenger.judged_jobs())} jobs that it is "
        f"judged by: {named}"
    )


def _judge_figures(
    champion: ScoredRelease | None, challenger: ScoredRelease, policy: GatePolicy
) -> Iterator[Row]:
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
    """A figure against the champion's: worse or better only beyond chance and tolerance."""
    family = _tolerance_key(change.metric)
    old, more_is_better = change.champion, COMPARED_METRICS[family]
    low, high = change.interval(risk)
    slack = policy.metric_tolerance(change.predictor, family) * abs(old)
    at_least, at_most = (old - slack, None) if more_is_better else (None, old + slack)
    gain, surely = (change.rise, low) if more_is_better else (-change.rise, -high)
    at_best = high if more_is_better else -low
    can_promote = change.slice_name == ALL_ROWS and family not in NON_PROMOTING_METRICS
    verdict = WITHIN
    if gain < -slack and at_best < 0:
        verdict = WORSE
    elif can_promote and gain > policy.min_improvement * abs(old) and surely > 0:
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
    within = low - _ROUNDING <= figures[metric] <= high + _ROUNDING
    verdict = WITHIN if within else OUT_OF_BOUNDS
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
    """A figure over all rows, whose change nobody asks about."""
    return Row(predictor, ALL_ROWS, metric, old, new, None, None, at_least, at_most, verdict)


def _rejection_rank(row: Row) -> tuple[bool, float]:
    """Which of those that refuse is named: one of all rows, else the slice that is worst."""
    if not row.slice_name or not row.champion:
        return bool(row.slice_name), 0.0
    return True, -abs(row.challenger / row.champion - 1)


def _rejection_reason(row: Row) -> str:
    """Why a row refuses; without the microseconds, which differ from run to run."""
    what = _figure_name(row)
    if row.verdict == TOO_SLOW:
        return f"{row.predictor} is too slow"
    if row.at_least is not None and row.challenger < row.at_least:
        return f"{what} is {_format_number(row.challenger)}, at least {_format_number(row.at_least)} is asked"
    return f"{what} is {_format_number(row.challenger)}, at most {_format_number(row.at_most)} is allowed"


def _figure_name(row: Row) -> str:
    """A figure in words, with its slice."""
    return f"{row.predictor} {row.metric}" + (f" on {row.slice_name}" if row.slice_name else "")


def _tolerance_key(metric: str) -> str:
    """Metric whose tolerance applies: both intervals' widths share one, and their scores."""
    for name in ("interval_width", "interval_score"):
        if metric.startswith(name):
            return name
    return metric


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _binomial_quantile(trials: int, p: float, probability: float) -> int:
    """Smallest count that is reached or undercut with at least ``probability``."""
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
