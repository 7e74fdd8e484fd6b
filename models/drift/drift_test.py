"""Whether what jobs do is still what a release promised of them.

Three questions, each asked of a quantity on all outcomes, on those of a device and on those of a
family, by :mod:`presage.models.drift.e_detector`:

- *New jobs*: do more of them miss the 80 % interval, on one side, than of the held-out jobs?
  Runs of one job err together, so a job's first run is asked, and no other.
- *Jobs seen before*: do they do what they did? A run is ranked among the earlier runs of the very
  same job, on the same kind of device, at the same share, beside the same neighbours.
- *Input*: are more of the jobs out of domain than of the held-out ones?
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from presage.features.quantities.registry import (
    INTERFERENCE,
    QUANTITIES,
    job_quantities,
    solo_quantities,
)
from presage.models.drift.e_detector import (
    ABOVE,
    BELOW,
    INSIDE,
    EDetector,
    event_factors,
    interval_factors,
    rank_factors,
    smoothed_rank,
)
from presage.system.arrays import Array

COVERAGE = 0.8
IN_DOMAIN = "in_domain"  # of the input, asked like a quantity
_SLICES_PER_OUTCOME = 3  # that an outcome is in: all, its device, its family
# Callers name devices and families, and bring jobs, so what is remembered of them is bounded: those
# that the release does not know are one slice, and of a job that has not run for long nothing is.
OTHER_SLICE = "other"
_MAX_JOBS = 20_000
_MAX_RUNS = 64  # of a job, that its next is ranked among; then its history begins anew
_MIN_RATIO = 1e-9
_RECENT = 20  # runs that say how far a change went

NO_DRIFT, MISSED, CHANGED, OUT_OF_DOMAIN = "", "missed", "changed", "strangers"

# By predictor and slice ("", "device cpu-2", "family cnn"): of how many rows; mape; how many per
# cent were below and above their 80 % interval, and in domain.
Guarantees = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class DriftPolicy:
    """How sure is sure.

    Attributes
    ----------
    false_alarm_outcomes : int
        Outcomes between two false alarms of any kind, on average, at least.
    tolerance : float
        How much more often than promised an interval may be missed on either side, and a job be
        out of domain, as a part of all.
    least_change : float
        Of a quantity, relatively, that jobs seen before must have changed by.
    window : int
        Newest runs that errors are told of.
    """

    false_alarm_outcomes: int
    tolerance: float = 0.05
    least_change: float = 0.1
    window: int = 500

    def __post_init__(self) -> None:
        for name in ("false_alarm_outcomes", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}, must be 1 or more")
        if not 0 < self.tolerance < 0.4:
            raise ValueError(f"tolerance={self.tolerance}, must be above 0 and below 0.4")
        if not 0 <= self.least_change < math.inf:
            raise ValueError(f"least_change={self.least_change}, must be a number of 0 or more")


@dataclass(frozen=True, slots=True)
class JudgedQuantity:
    """One quantity of an outcome beside its forecast.

    Attributes
    ----------
    key : str
        Of the report.
    job : str
        Equal for runs of the same job in the same place and company.
    """

    key: str
    quantity: str
    device_kind: str
    family: str
    job: str
    in_domain: bool
    measured: float
    low: float
    median: float
    high: float

    @property
    def slices(self) -> tuple[str, ...]:
        """What it is an outcome of; a family that was not told is none."""
        of_device = "", f"device {self.device_kind}"
        return (*of_device, f"family {self.family}") if self.family else of_device


@dataclass(frozen=True, slots=True)
class Row:
    """How a quantity does in a slice; what is not known is None.

    Attributes
    ----------
    slice_name : str
        Such as ``device cpu-2`` or ``family cnn``; "" of all outcomes.
    jobs, runs : int
        Different jobs that were judged, and all of their runs.
    mape, coverage : float
        Of the newest runs in domain: per cent off, and per cent within the 80 % interval; of
        ``in_domain``, ``coverage`` is the per cent that are.
    ratio : float
        Measured over forecast, their median; above 1 there is more than was foretold.
    change : float
        Of runs of jobs seen before, to those before: their median ratio.
    evidence : float
        1 or more is certain enough to be called drift.
    drift : str
        What has drifted; "" if nothing has.
    noticed_after : int
        Outcomes of the slice until it first was; None while it has not been.
    """

    quantity: str
    slice_name: str
    jobs: int
    runs: int
    mape: float | None
    promised_mape: float | None
    coverage: float | None
    promised_coverage: float
    ratio: float | None
    change: float | None
    evidence: float
    drift: str
    noticed_after: int | None


class DriftMonitor:
    """Outcomes of one release, in the order in which they came, and what they add up to.

    Parameters
    ----------
    guarantees : Promises
        Of the release; where it makes none, what an 80 % interval says.
    """

    def __init__(self, guarantees: Guarantees, policy: DriftPolicy) -> None:
        self._promises, self._policy = guarantees, policy
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._jobs: dict[str, dict[str, list[float]]] = {}  # runs by quantity, newest job last
        self._predictors = {one.forecast_field: name for name, one in QUANTITIES.items()}
        self._known = frozenset(name for by_slice in guarantees.values() for name in by_slice)

    def add(self, outcome: Sequence[JudgedQuantity]) -> None:
        """Take all that one outcome says."""
        for judged in outcome[:1]:
            if judged.job not in self._jobs:
                for stream in self._streams_of(IN_DOMAIN, judged):
                    stream.add_input(judged)
        for judged in outcome:
            runs = self._runs_of(judged)
            streams = list(self._streams_of(judged.quantity, judged))
            for stream in streams:
                stream.add(judged, runs)
            # While a device is called changed, its runs are ranked among those before it was; else
            # the change would become what is usual, and seem to be over.
            _, of_device, *_ = streams
            if not runs or of_device.drift != CHANGED:
                if len(runs) == _MAX_RUNS:
                    runs.clear()
                runs.append(judged.measured)

    def rows(self) -> list[Row]:
        """By quantity and slice, all outcomes first."""
        order = judged_quantities()
        known = sorted(self._streams, key=lambda of: (order.index(of[0]), of[1]))
        return [self._streams[of].row(*of) for of in known]

    def _runs_of(self, judged: JudgedQuantity) -> list[float]:
        of_job = self._jobs.pop(judged.job, {})
        self._jobs[judged.job] = of_job
        if len(self._jobs) > _MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return of_job.setdefault(judged.quantity, [])

    def _streams_of(self, quantity: str, judged: JudgedQuantity) -> Iterator[_Stream]:
        for told in judged.slices:
            name = told
            if told and told not in self._known:
                name = f"{told.partition(' ')[0]} {OTHER_SLICE}"
            stream = self._streams.get((quantity, name))
            if stream is None:
                stream = _Stream(self._expectation(quantity, name), self._policy)
                self._streams[quantity, name] = stream
            yield stream

    def _expectation(self, quantity: str, slice_name: str) -> _Expectation:
        tolerance = self._policy.tolerance
        if quantity == IN_DOMAIN:
            found = min(
                (_slice_figures(by_slice, slice_name) for by_slice in self._promises.values()),
                key=lambda figures: figures.get(IN_DOMAIN, 100.0),
                default={},
            )
            inside = found.get(IN_DOMAIN, 0.0) / 100
            allowed = _upper_bound(1 - inside, found.get("rows", 0.0), tolerance)
            return _Expectation(inside, None, allowed_strangers=allowed)
        found = _slice_figures(
            self._promises.get(self._predictors.get(quantity, ""), {}), slice_name
        )
        tail = (1 - COVERAGE) / 2
        below, above = (found.get(side, 100 * tail) / 100 for side in ("below", "above"))
        rows = found.get("rows", math.inf)
        return _Expectation(
            1 - below - above,
            found.get("mape"),
            allowed_below=_upper_bound(max(below, tail), rows, tolerance),
            allowed_above=_upper_bound(max(above, tail), rows, tolerance),
        )


def judged_quantities() -> list[str]:
    """Return what drift is watched by: forecast fields, and ``in_domain`` of the input."""
    return [*job_quantities(), INTERFERENCE.forecast_field, IN_DOMAIN]


def _streams_per_outcome() -> int:
    """Return how many streams one outcome may enter: solo quantities and its input, by slice."""
    return (len(solo_quantities()) + 1) * _SLICES_PER_OUTCOME


def _slice_figures(
    by_slice: Mapping[str, Mapping[str, float]], slice_name: str
) -> Mapping[str, float]:
    return by_slice.get(slice_name) or by_slice.get("") or {}


def _upper_bound(part: float, rows: float, tolerance: float) -> float:
    """What a part of so many rows may truly be, by Wilson's bound at 95 %, and the tolerance."""
    z = 1.645
    if rows == 0:
        return 1.0
    middle = part + z**2 / (2 * rows)
    reach = z * math.sqrt(part * (1 - part) / rows + (z / rows) ** 2 / 4)
    return (middle + reach) / (1 + z**2 / rows) + tolerance


@dataclass(frozen=True, slots=True)
class _Expectation:
    """What a release said of a slice, as parts of all; what is allowed may truly be so."""

    coverage: float
    mape: float | None
    allowed_below: float = 1.0
    allowed_above: float = 1.0
    allowed_strangers: float = 1.0


@dataclass
class _Stream:
    """One quantity in one slice."""

    expectation: _Expectation
    policy: DriftPolicy
    jobs: int = 0
    runs: int = 0
    noticed_after: int | None = None
    misses: EDetector = field(init=False)
    changes: EDetector = field(init=False)
    strangers: EDetector = field(init=False)

    def __post_init__(self) -> None:
        threshold = float(self.policy.false_alarm_outcomes * _streams_per_outcome())
        self.misses, self.changes, self.strangers = (EDetector(threshold) for _ in range(3))
        self._interval = interval_factors(
            self.expectation.allowed_below, self.expectation.allowed_above
        )
        self._event = event_factors(self.expectation.allowed_strangers)
        self._window: deque[tuple[float, bool]] = deque(maxlen=self.policy.window)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def add(self, judged: JudgedQuantity, before: Sequence[float]) -> None:
        """Take a run of a job, and what the runs of the same job before it had."""
        self.runs += 1
        inside = judged.low <= judged.measured <= judged.high
        if judged.in_domain:
            self._window.append((_ratio(judged.measured, judged.median), inside))
        if before:
            told = np.array(before)
            self.changes.add(
                rank_factors(smoothed_rank(judged.measured, told, _tie_breaker(judged)))
            )
            self._recent.append(_ratio(judged.measured, float(np.median(told))))
        self.jobs += not before
        # Beyond its domain an interval promises nothing. Once more miss for certain, all runs are
        # asked: it is over, too, when jobs seen before are as foretold.
        if judged.in_domain and (not before or self.misses.alarm):
            missed = BELOW if judged.measured < judged.low else ABOVE
            self.misses.add(self._interval[INSIDE if inside else missed])
        self._notice()

    def add_input(self, judged: JudgedQuantity) -> None:
        """Take a job that was not seen before."""
        self.jobs, self.runs = self.jobs + 1, self.runs + 1
        self._window.append((1.0, judged.in_domain))
        self.strangers.add(self._event[int(not judged.in_domain)])
        self._notice()

    def row(self, quantity: str, slice_name: str) -> Row:
        """What it adds up to."""
        # Of a measured zero, or next to it, no error is known.
        ratios = np.array([r for r, _ in self._window if math.isfinite(r) and r > _MIN_RATIO])
        inside = [ok for _, ok in self._window]
        is_input = quantity == IN_DOMAIN
        return Row(
            quantity,
            slice_name,
            self.jobs,
            self.runs,
            None if is_input else _mean(100 * np.abs(1 - 1 / ratios)),
            self.expectation.mape,
            100 * sum(inside) / len(inside) if inside else None,
            100 * self.expectation.coverage,
            None if is_input or not len(ratios) else float(np.median(ratios)),
            self._change(),
            max(found.evidence for found in (self.misses, self.changes, self.strangers)),
            self.drift,
            self.noticed_after,
        )

    @property
    def drift(self) -> str:
        """What has drifted; "" if nothing has."""
        if self.misses.alarm:
            return MISSED
        change = self._change()
        if self.changes.alarm and change is not None:
            least = self.policy.least_change
            if not 1 / (1 + least) < change < 1 + least:
                return CHANGED
        return OUT_OF_DOMAIN if self.strangers.alarm else NO_DRIFT

    def _change(self) -> float | None:
        known = [ratio for ratio in self._recent if math.isfinite(ratio)]
        return float(np.median(known)) if known else None

    def _notice(self) -> None:
        if self.noticed_after is None and self.drift:
            self.noticed_after = self.runs


def _ratio(measured: float, expected: float) -> float:
    return measured / expected if expected > 0 else math.nan


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def _tie_breaker(judged: JudgedQuantity) -> float:
    """Between 0 and 1, as if by chance, and the same again."""
    digest = hashlib.sha256(f"{judged.quantity} {judged.key}".encode()).digest()
    return (int.from_bytes(digest[:7]) + 0.5) / 2**56
