"""The gate: whether a challenger is good enough to serve, and better than the champion.

Pure: figures in, a decision out. Four rules, every one of which must hold:

1. no error and no interval width is worse than the champion's by more than its tolerance;
2. at least one of them is better by more than ``min_improvement``;
3. the 80 % and 90 % intervals cover about as often as they say;
4. one row is answered within the latency bound.

Without a champion that can be compared, 3 and 4 decide alone.

Rule 3 on few jobs
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

Scores = Mapping[str, Mapping[str, float]]

BETTER, WITHIN, WORSE = "better", "within", "worse"
OUT_OF_BOUNDS, TOO_SLOW, NO_FIGURE = "out of bounds", "too slow", "no figure"
NOT_COMPARED = "not compared"
REFUSING = (WORSE, OUT_OF_BOUNDS, TOO_SLOW, NO_FIGURE)

_ROUNDING = 1e-6  # of percentages: 14 of 15 jobs is not out of bounds by a last digit

# Metrics that are compared with the champion's, and whether more is better.
COMPARED = {
    "mape": False,
    "median_ape": False,
    "within_10pct": True,
    "mae": False,
    "rmsle": False,
    "interval_width": False,
}


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the gate lets through; from the section ``promote`` of params.yaml.

    Attributes
    ----------
    tolerance : mapping of str to float
        Per metric of COMPARED, how much worse than the champion's it may be, relatively.
    min_improvement : float
        How much better, relatively, at least one figure must be.
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
    """

    tolerance: Mapping[str, float]
    min_improvement: float
    coverage_points: float
    coverage_risk: float
    latency_us: float
    latency_ratio: float
    latency_free_us: float

    def __post_init__(self) -> None:
        if set(self.tolerance) != set(COMPARED):
            raise ValueError(
                f"promote.tolerance names {sorted(self.tolerance)}, must name "
                f"{sorted(COMPARED)}; mend params.yaml"
            )
        at_least_0 = {name: getattr(self, name) for name in ("min_improvement", "coverage_points")}
        for name, value in {**self.tolerance, **at_least_0}.items():
            if not value >= 0:
                raise ValueError(f"promote.{name}={value}, must be >= 0; mend params.yaml")
        if not 0 < self.coverage_risk < 0.5:
            raise ValueError(f"promote.coverage_risk={self.coverage_risk}, must be within (0, 0.5)")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure that was judged; ``at_least`` and ``at_most`` are what it was held to."""

    predictor: str
    metric: str
    champion: float | None
    challenger: float
    at_least: float | None
    at_most: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to promote, why, and the table it was decided by."""

    promote: bool
    reason: str
    rows: tuple[Row, ...]


def decide(champion: Scores | None, challenger: Scores, policy: GatePolicy) -> Decision:
    """Whether the challenger becomes champion.

    Parameters
    ----------
    champion, challenger : mapping of predictor to figures
        As :func:`presage.models.score.score` gives them, both on the same rows; None for no
        champion.
    """
    rows = tuple(_judge(champion or {}, challenger, policy))
    refused = [row for row in rows if row.verdict in REFUSING]
    better = [row for row in rows if row.verdict == BETTER]
    if refused:
        more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
        return Decision(False, f"{_complaint(refused[0])}{more}", rows)
    if champion is None:
        return Decision(True, "no champion to compare with; coverage and latency in bounds", rows)
    if not better:
        reason = (
            f"no improvement: no figure is better by more than {100 * policy.min_improvement:g} %"
        )
        return Decision(False, reason, rows)
    compared = sum(row.verdict in (BETTER, WITHIN) and _is_compared(row.metric) for row in rows)
    first = min(better, key=lambda row: (row.metric != "mape", row.predictor))
    reason = (
        f"{len(better)} of {compared} figures are better, none is out of tolerance; "
        f"{first.predictor} {first.metric} {_number(first.challenger)} after "
        f"{_number(first.champion)}"
    )
    return Decision(True, reason, rows)


def coverage_bounds(nominal: float, jobs: int, policy: GatePolicy) -> tuple[float, float]:
    """Lowest and highest coverage, in percent, that ``jobs`` held-out jobs may show."""
    off = policy.coverage_points / 100
    fewest = _binomial_quantile(jobs, max(nominal - off, 0.0), policy.coverage_risk)
    most = _binomial_quantile(jobs, min(nominal + off, 1.0), 1 - policy.coverage_risk)
    return 100 * fewest / jobs, 100 * most / jobs


def _judge(champion: Scores, challenger: Scores, policy: GatePolicy) -> Iterator[Row]:
    for predictor, figures in challenger.items():
        before = champion.get(predictor, {})
        for metric, value in figures.items():
            old = before.get(metric)
            if _is_compared(metric):
                yield _compare(predictor, metric, old, value, policy)
            elif metric.startswith("coverage_"):
                nominal = float(metric.removeprefix("coverage_").rstrip("%")) / 100
                bounds = coverage_bounds(nominal, int(figures["jobs"]), policy)
                within = bounds[0] - _ROUNDING <= value <= bounds[1] + _ROUNDING
                verdict = WITHIN if within else OUT_OF_BOUNDS
                yield Row(predictor, metric, old, value, *bounds, verdict)
            elif metric == "latency_us":
                yield _time(predictor, old, value, policy)


def _compare(predictor: str, metric: str, old: float | None, new: float, policy: GatePolicy) -> Row:
    """A figure against the champion's; one that the champion has not cannot be compared."""
    if old is None or not math.isfinite(old):
        return Row(predictor, metric, old, new, None, None, NOT_COMPARED)
    family = _family(metric)
    slack = policy.tolerance[family] * abs(old)
    at_least, at_most = (old - slack, None) if COMPARED[family] else (None, old + slack)
    gain = new - old if COMPARED[family] else old - new
    if not math.isfinite(new):
        verdict = NO_FIGURE
    elif gain < -slack:
        verdict = WORSE
    else:
        verdict = BETTER if gain > policy.min_improvement * abs(old) else WITHIN
    return Row(predictor, metric, old, new, at_least, at_most, verdict)


def _time(predictor: str, old: float | None, new: float, policy: GatePolicy) -> Row:
    at_most = policy.latency_us
    if old is not None:
        at_most = min(at_most, max(policy.latency_ratio * old, policy.latency_free_us))
    verdict = WITHIN if new <= at_most else TOO_SLOW
    return Row(predictor, "latency_us", old, new, None, at_most, verdict)


def _complaint(row: Row) -> str:
    """Why a row refuses; without the microseconds, which differ from run to run."""
    what = f"{row.predictor} {row.metric}"
    if row.verdict == TOO_SLOW:
        return f"{row.predictor} is too slow"
    if row.verdict == NO_FIGURE:
        return f"{what} is not a number"
    if row.at_least is not None and row.challenger < row.at_least:
        return f"{what} is {_number(row.challenger)}, at least {_number(row.at_least)} is asked"
    return f"{what} is {_number(row.challenger)}, at most {_number(row.at_most)} is allowed"


def _family(metric: str) -> str:
    """Metric whose tolerance applies: both intervals' widths share one."""
    return "interval_width" if metric.startswith("interval_width") else metric


def _is_compared(metric: str) -> bool:
    return _family(metric) in COMPARED


def _number(value: float | None) -> str:
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
