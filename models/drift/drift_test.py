"""Drift tests: whether outcomes still follow the calibration guarantee of a release.

Three tests of each quantity, on all outcomes, those of a device and those of a family, use
:mod:`presage.models.drift.e_detector`:

- *New jobs*: do more of them miss the 80 % interval on one side than of the held-out jobs? Errors
  of runs of one job are correlated, so only the first run of a job counts.
- *Repeated jobs*: do they behave as before? A run is ranked among the earlier runs of the same job,
  on the same kind of device, at the same share, with the same co-located jobs.
- *Input*: are more jobs out of domain than of the held-out jobs?
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from presage.features.quantities.quantity_registry import (
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
IN_DOMAIN = "in_domain"  # of the input, tested like a quantity
_SLICES_PER_OUTCOME = 3  # all, its device, its family
# Clients choose the names of devices, families and jobs, so memory is bounded: unknown devices and
# families share one slice, and the history of jobs that have not run for long is dropped.
OTHER_SLICE = "other"
MAX_JOBS = 20_000
_MAX_RUNS = 64  # in the history of a job, which is then reset
_MIN_RATIO = 1e-9
_RECENT = 20  # runs for the estimate of a change

NO_DRIFT, MISSED, CHANGED, OUT_OF_DOMAIN = "", "missed", "changed", "out of domain"

ERROR_RATIO = "domain_error_ratio"
# By predictor and slice ("", "device cpu-2", "family cnn"): number of rows, mape, and percentages
# of rows below and above their 80 % interval, and in domain. Slices "class gpu" have ERROR_RATIO,
# the error out of domain over that in domain, of families left out of training.
Guarantees = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class DriftPolicy:
    """Sensitivity of the drift tests.

    Attributes
    ----------
    false_alarm_outcomes : int
        Least average number of outcomes between two false alarms of any kind.
    tolerance : float
        Fraction by which misses on either side, and jobs out of domain, may exceed the guarantee.
    least_change : float
        Smallest relative change of repeated jobs that counts as drift.
    window : int
        Number of newest runs in the reported errors.
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
    """Measured quantity of an outcome and its forecast.

    Attributes
    ----------
    key : str
        Idempotency key of the report.
    quantity, device_kind, family : str
    job : str
        Key of the job, its device, share and co-located jobs.
    in_domain : bool
    measured : float
    low, median, high : float
        Forecast, with the ends of the 80 % interval.
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
        """Slices of the outcome: all, its device and, if it is known, its family."""
        slices = "", f"device {self.device_kind}"
        return (*slices, f"family {self.family}") if self.family else slices


@dataclass(frozen=True, slots=True)
class Row:
    """State of a quantity in a slice; unknown numbers are None.

    Attributes
    ----------
    quantity : str
    slice_name : str
        Slice, such as ``device cpu-2`` or ``family cnn``; "" for all outcomes.
    jobs, runs : int
        Numbers of distinct jobs and of runs.
    mape, coverage : float
        Mean absolute percentage error, and percentage within the 80 % interval, of the newest runs
        in domain. For ``in_domain``, ``coverage`` is the percentage in domain.
    promised_mape, promised_coverage : float
        The same of the calibration guarantee.
    ratio : float
        Median ratio of measured to predicted; above 1, measurements exceed forecasts.
    change : float
        Median ratio of runs of repeated jobs to their earlier runs.
    evidence : float
        Evidence of drift; 1 or more is an alarm.
    drift : str
        Kind of drift; "" for none.
    noticed_after : int
        Number of outcomes of the slice at the first drift; None before.
    offset_mape, offset_coverage : float
        As ``mape`` and ``coverage``, of forecasts with the offsets of earlier outcomes.
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
    offset_mape: float | None = None
    offset_coverage: float | None = None

    @property
    def is_repaired(self) -> bool:
        """Whether there is drift, but forecasts with offsets cover what they should."""
        return bool(self.drift) and (self.offset_coverage or 0.0) >= self.promised_coverage


class DriftMonitor:
    """Drift tests over the outcomes of one release, in order of arrival.

    Parameters
    ----------
    guarantees : Guarantees
        Calibration guarantees of the release; if empty, the nominal 80 % interval.
    policy : DriftPolicy
    """

    def __init__(self, guarantees: Guarantees, policy: DriftPolicy) -> None:
        self._guarantees, self._policy = guarantees, policy
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._jobs: dict[str, dict[str, list[float]]] = {}  # runs by quantity, newest job last
        self._predictors = {quantity.forecast_field: name for name, quantity in QUANTITIES.items()}
        self._known = frozenset(name for by_slice in guarantees.values() for name in by_slice)

    def add(
        self, outcome: Sequence[JudgedQuantity], corrected: Sequence[JudgedQuantity] = ()
    ) -> None:
        """Add the quantities of one outcome.

        Parameters
        ----------
        outcome : sequence of JudgedQuantity
            Compared with forecasts of the release, which are tested.
        corrected : sequence of JudgedQuantity
            Compared with forecasts that have offsets of earlier outcomes, which are only counted.
        """
        for judged in corrected:
            for stream in self._streams_of(judged.quantity, judged):
                stream.add_corrected(judged)
        for judged in outcome[:1]:
            if judged.job not in self._jobs:
                for stream in self._streams_of(IN_DOMAIN, judged):
                    stream.add_input(judged)
        for judged in outcome:
            runs = self._runs_of(judged)
            streams = list(self._streams_of(judged.quantity, judged))
            for stream in streams:
                stream.add(judged, runs)
            # While a device is reported as changed, its runs are ranked among those before the
            # change; otherwise the change would become normal, and seem to be over.
            _, device_stream, *_ = streams
            if not runs or device_stream.drift != CHANGED:
                if len(runs) == _MAX_RUNS:
                    runs.clear()
                runs.append(judged.measured)

    def rows(self) -> list[Row]:
        """Return the rows by quantity and slice, all outcomes first."""
        order = judged_quantities()
        keys = sorted(self._streams, key=lambda key: (order.index(key[0]), key[1]))
        return [self._streams[key].row(*key) for key in keys]

    def _runs_of(self, judged: JudgedQuantity) -> list[float]:
        """Return the earlier runs of the same job, which becomes the newest job."""
        history = self._jobs.pop(judged.job, {})
        self._jobs[judged.job] = history
        if len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return history.setdefault(judged.quantity, [])

    def _streams_of(self, quantity: str, judged: JudgedQuantity) -> Iterator[_Stream]:
        """Yield the streams of an outcome's slices, which are created on first use."""
        for slice_name in judged.slices:
            name = slice_name
            if slice_name and slice_name not in self._known:
                name = f"{slice_name.partition(' ')[0]} {OTHER_SLICE}"
            stream = self._streams.get((quantity, name))
            if stream is None:
                stream = _Stream(
                    self._expectation(quantity, name),
                    self._policy,
                    _streams_per_outcome(self._guarantees),
                )
                self._streams[quantity, name] = stream
            yield stream

    def _expectation(self, quantity: str, slice_name: str) -> _Expectation:
        tolerance = self._policy.tolerance
        if quantity == IN_DOMAIN:
            found = min(
                (_slice_figures(by_slice, slice_name) for by_slice in self._guarantees.values()),
                key=lambda figures: figures.get(IN_DOMAIN, 100.0),
                default={},
            )
            inside = found.get(IN_DOMAIN, 0.0) / 100
            allowed = _upper_bound(1 - inside, found.get("rows", 0.0), tolerance)
            return _Expectation(inside, None, allowed_out_of_domain=allowed)
        found = _slice_figures(
            self._guarantees.get(self._predictors.get(quantity, ""), {}), slice_name
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
    """Return the tested quantities: forecast fields, and ``in_domain`` of the input."""
    return [*job_quantities(), INTERFERENCE.forecast_field, IN_DOMAIN]


def _streams_per_outcome(guarantees: Guarantees) -> int:
    """Return the number of streams of one outcome: solo quantities and its input, by slice.

    Quantities without a guarantee are not predicted. A release without guarantees predicts those
    that every release must predict.
    """
    predicted = [
        name
        for name, quantity in solo_quantities().items()
        if (name in guarantees if guarantees else not quantity.is_optional)
    ]
    return (len(predicted) + 1) * _SLICES_PER_OUTCOME


def _slice_figures(
    by_slice: Mapping[str, Mapping[str, float]], slice_name: str
) -> Mapping[str, float]:
    return by_slice.get(slice_name) or by_slice.get("") or {}


def _upper_bound(part: float, rows: float, tolerance: float) -> float:
    """Return Wilson's upper bound (95 %) of a fraction of ``rows``, plus the tolerance."""
    z = 1.645
    if rows == 0:
        return 1.0
    middle = part + z**2 / (2 * rows)
    reach = z * math.sqrt(part * (1 - part) / rows + (z / rows) ** 2 / 4)
    return (middle + reach) / (1 + z**2 / rows) + tolerance


@dataclass(frozen=True, slots=True)
class _Expectation:
    """Calibration guarantee of a slice, as fractions, and the allowed true fractions."""

    coverage: float
    mape: float | None
    allowed_below: float = 1.0
    allowed_above: float = 1.0
    allowed_out_of_domain: float = 1.0


@dataclass
class _Stream:
    """Drift tests of one quantity in one slice."""

    expectation: _Expectation
    policy: DriftPolicy
    streams: int  # of one outcome, which share the probability of a false alarm
    jobs: int = 0
    runs: int = 0
    noticed_after: int | None = None
    misses: EDetector = field(init=False)
    changes: EDetector = field(init=False)
    inputs: EDetector = field(init=False)

    def __post_init__(self) -> None:
        threshold = float(self.policy.false_alarm_outcomes * self.streams)
        self.misses, self.changes, self.inputs = (EDetector(threshold) for _ in range(3))
        self._interval = interval_factors(
            self.expectation.allowed_below, self.expectation.allowed_above
        )
        self._event = event_factors(self.expectation.allowed_out_of_domain)
        self._window: deque[tuple[float, bool]] = deque(maxlen=self.policy.window)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._corrected: deque[tuple[float, bool]] = deque(maxlen=self.policy.window)

    def add_corrected(self, judged: JudgedQuantity) -> None:
        """Add a run's forecast with offsets; it is in no test."""
        inside = judged.low <= judged.measured <= judged.high
        self._corrected.append((_ratio(judged.measured, judged.median), inside))

    def add(self, judged: JudgedQuantity, before: Sequence[float]) -> None:
        """Add a run of a job; ``before`` are the values of its earlier runs."""
        self.runs += 1
        inside = judged.low <= judged.measured <= judged.high
        if judged.in_domain:
            self._window.append((_ratio(judged.measured, judged.median), inside))
        if before:
            earlier = np.array(before)
            rank = smoothed_rank(judged.measured, earlier, _tie_breaker(judged))
            self.changes.add(rank_factors(rank))
            self._recent.append(_ratio(judged.measured, float(np.median(earlier))))
        self.jobs += not before
        # The guarantee does not hold out of domain. During an alarm all runs count, so that it also
        # ends when repeated jobs match their forecasts again.
        if judged.in_domain and (not before or self.misses.alarm):
            missed = BELOW if judged.measured < judged.low else ABOVE
            self.misses.add(self._interval[INSIDE if inside else missed])
        self._notice()

    def add_input(self, judged: JudgedQuantity) -> None:
        """Add a new job to the test of the input."""
        self.jobs, self.runs = self.jobs + 1, self.runs + 1
        self._window.append((1.0, judged.in_domain))
        self.inputs.add(self._event[int(not judged.in_domain)])
        self._notice()

    def row(self, quantity: str, slice_name: str) -> Row:
        """Return the state of the tests."""
        mape, coverage, ratios = _errors(self._window)
        offset_mape, offset_coverage, _ = _errors(self._corrected)
        is_input = quantity == IN_DOMAIN
        return Row(
            quantity,
            slice_name,
            self.jobs,
            self.runs,
            None if is_input else mape,
            self.expectation.mape,
            coverage,
            100 * self.expectation.coverage,
            None if is_input or not len(ratios) else float(np.median(ratios)),
            self._change(),
            max(found.evidence for found in (self.misses, self.changes, self.inputs)),
            self.drift,
            self.noticed_after,
            offset_mape,
            offset_coverage,
        )

    @property
    def drift(self) -> str:
        """Kind of drift; "" for none."""
        if self.misses.alarm:
            return MISSED
        change = self._change()
        if self.changes.alarm and change is not None:
            least = self.policy.least_change
            if not 1 / (1 + least) < change < 1 + least:
                return CHANGED
        return OUT_OF_DOMAIN if self.inputs.alarm else NO_DRIFT

    def _change(self) -> float | None:
        known = [ratio for ratio in self._recent if math.isfinite(ratio)]
        return float(np.median(known)) if known else None

    def _notice(self) -> None:
        if self.noticed_after is None and self.drift:
            self.noticed_after = self.runs


def _ratio(measured: float, expected: float) -> float:
    return measured / expected if expected > 0 else math.nan


def _errors(window: Sequence[tuple[float, bool]]) -> tuple[float | None, float | None, Array]:
    """Return MAPE and coverage in percent, and the ratios of measured to predicted."""
    # The relative error of a measurement of about 0 is undefined.
    ratios = np.array([r for r, _ in window if math.isfinite(r) and r > _MIN_RATIO])
    inside = [ok for _, ok in window]
    coverage = 100 * sum(inside) / len(inside) if inside else None
    return _mean(100 * np.abs(1 - 1 / ratios)), coverage, ratios


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def _tie_breaker(judged: JudgedQuantity) -> float:
    """Return a pseudo-random number in (0, 1) that is reproducible for the outcome."""
    digest = hashlib.sha256(f"{judged.quantity} {judged.key}".encode()).digest()
    return (int.from_bytes(digest[:7]) + 0.5) / 2**56
