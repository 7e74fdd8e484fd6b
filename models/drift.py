"""Whether what jobs do is still what a release promised of them.

Three questions, each asked of a quantity on all outcomes, on those of a device and on those of a
family, by :mod:`presage.models.e_detector`:

- *New jobs*: do more of them miss the 80 % interval, on one side, than on the held-out jobs?
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

from presage.models.e_detector import (
    ABOVE,
    BELOW,
    INSIDE,
    Array,
    EDetector,
    event_factors,
    interval_factors,
    rank_factors,
    smoothed_rank,
)

COVERAGE = 0.8
# What every release is asked to promise of an interval is on so many rows of the slice, beside
# those that it was held to.
_NOMINAL_ROWS = 20
IN_DOMAIN = "in_domain"  # of the input, asked like a quantity
# An outcome is asked of at most three quantities and of its input, in three slices.
_STREAMS = 4 * 3
# Callers name devices and families, and bring jobs: what is remembered of them is bounded. Slices
# beyond these are one; of a job that has not run for so many others nothing is known.
_MOST_SLICES, OTHER = 200, "other"
_MOST_JOBS = 20_000
_MOST_RUNS = 64  # of a job, that its next is ranked among; then its history begins anew
_RECENT = 20  # runs that say how far a change went

NO_DRIFT, MISSES, CHANGED, STRANGERS = "", "missed", "changed", "strangers"

PREDICTOR_OF = {
    "compute_utilization": "compute_utilization",
    "memory_bytes": "memory",
    "step_time_s": "step_time",
    "slowdown": "interference",
}
QUANTITIES = (
    "compute_utilization", "memory_bytes", "step_time_s", "runtime_s", "slowdown", IN_DOMAIN,
)  # fmt: skip
# By predictor and slice ("", "device cpu-2", "family cnn"): rows, mape, coverage_80%, in_domain.
Promises = Mapping[str, Mapping[str, Mapping[str, float]]]


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
class Judged:
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


class Drift:
    """Outcomes of one release, in the order in which they came, and what they add up to.

    Parameters
    ----------
    promises : Promises
        Of the release; where it makes none, what an 80 % interval says.
    """

    def __init__(self, promises: Promises, policy: DriftPolicy) -> None:
        self._promises, self._policy = promises, policy
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._jobs: dict[str, dict[str, list[float]]] = {}  # runs by quantity, newest job last
        self._slices: set[str] = set()

    def add(self, outcome: Sequence[Judged]) -> None:
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
            # While a change lasts, runs are ranked among those before it; else it would become
            # what is usual, and seem to be over.
            if not runs or not any(stream.changes.alarm for stream in streams):
                if len(runs) == _MOST_RUNS:
                    runs.clear()
                runs.append(judged.measured)

    def rows(self) -> list[Row]:
        """By quantity and slice, all outcomes first."""
        known = sorted(self._streams, key=lambda of: (QUANTITIES.index(of[0]), of[1]))
        return [self._streams[of].row(*of) for of in known]

    def _runs_of(self, judged: Judged) -> list[float]:
        of_job = self._jobs.pop(judged.job, {})
        self._jobs[judged.job] = of_job
        if len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return of_job.setdefault(judged.quantity, [])

    def _streams_of(self, quantity: str, judged: Judged) -> Iterator[_Stream]:
        for told in judged.slices:
            name = told
            if told not in self._slices:
                if len(self._slices) < _MOST_SLICES:
                    self._slices.add(told)
                else:
                    name = f"{told.partition(' ')[0]} {OTHER}"
            stream = self._streams.get((quantity, name))
            if stream is None:
                stream = _Stream(self._promise(quantity, name), self._policy)
                self._streams[quantity, name] = stream
            yield stream

    def _promise(self, quantity: str, slice_name: str) -> _Promise:
        if quantity == IN_DOMAIN:
            of_all = [by_slice.get("", {}) for by_slice in self._promises.values()]
            told = [found[IN_DOMAIN] / 100 for found in of_all if IN_DOMAIN in found]
            return _Promise(min(told, default=1.0), None)
        by_slice = self._promises.get(PREDICTOR_OF.get(quantity, ""), {})
        found = by_slice.get(slice_name) or by_slice.get("") or {}
        rows = found.get("rows", 0.0)
        hits = rows * found.get("coverage_80%", 100 * COVERAGE) / 100 + _NOMINAL_ROWS * COVERAGE
        return _Promise(min(COVERAGE, hits / (rows + _NOMINAL_ROWS)), found.get("mape"))


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a release said of a slice; ``coverage`` is a part of all."""

    coverage: float
    mape: float | None


@dataclass
class _Stream:
    """One quantity in one slice."""

    promise: _Promise
    policy: DriftPolicy
    jobs: int = 0
    runs: int = 0
    noticed_after: int | None = None
    misses: EDetector = field(init=False)
    changes: EDetector = field(init=False)
    strangers: EDetector = field(init=False)

    def __post_init__(self) -> None:
        threshold = float(self.policy.false_alarm_outcomes * _STREAMS)
        self.misses, self.changes, self.strangers = (EDetector(threshold) for _ in range(3))
        missed = 1 - self.promise.coverage
        self._interval = interval_factors(missed / 2 + self.policy.tolerance)
        self._event = event_factors(min(missed + self.policy.tolerance, 0.9))
        self._window: deque[tuple[float, bool]] = deque(maxlen=self.policy.window)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    def add(self, judged: Judged, before: Sequence[float]) -> None:
        """Take a run of a job, and what the runs of the same job before it had."""
        self.runs += 1
        inside = judged.low <= judged.measured <= judged.high
        if judged.in_domain:
            self._window.append((_ratio(judged.measured, judged.median), inside))
        if before:
            told = np.array(before)
            self.changes.add(rank_factors(smoothed_rank(judged.measured, told, _tie(judged))))
            self._recent.append(_ratio(judged.measured, float(np.median(told))))
        else:
            self.jobs += 1
            if judged.in_domain:  # beyond it an interval promises nothing
                missed = BELOW if judged.measured < judged.low else ABOVE
                self.misses.add(self._interval[INSIDE if inside else missed])
        self._notice()

    def add_input(self, judged: Judged) -> None:
        """Take a job that was not seen before."""
        self.jobs, self.runs = self.jobs + 1, self.runs + 1
        self._window.append((1.0, judged.in_domain))
        self.strangers.add(self._event[int(not judged.in_domain)])
        self._notice()

    def row(self, quantity: str, slice_name: str) -> Row:
        """What it adds up to."""
        ratios = np.array([ratio for ratio, _ in self._window if math.isfinite(ratio)])
        inside = [ok for _, ok in self._window]
        is_input = quantity == IN_DOMAIN
        return Row(
            quantity,
            slice_name,
            self.jobs,
            self.runs,
            None if is_input else _mean(100 * np.abs(1 - 1 / ratios[ratios > 0])),
            self.promise.mape,
            100 * sum(inside) / len(inside) if inside else None,
            100 * self.promise.coverage,
            None if is_input or not len(ratios) else float(np.median(ratios)),
            self._change(),
            max(found.evidence for found in (self.misses, self.changes, self.strangers)),
            self._drift(),
            self.noticed_after,
        )

    def _drift(self) -> str:
        if self.misses.alarm:
            return MISSES
        change = self._change()
        if self.changes.alarm and change is not None:
            least = self.policy.least_change
            if not 1 / (1 + least) < change < 1 + least:
                return CHANGED
        return STRANGERS if self.strangers.alarm else NO_DRIFT

    def _change(self) -> float | None:
        known = [ratio for ratio in self._recent if math.isfinite(ratio)]
        return float(np.median(known)) if known else None

    def _notice(self) -> None:
        if self.noticed_after is None and self._drift():
            self.noticed_after = self.runs


def _ratio(measured: float, expected: float) -> float:
    return measured / expected if expected > 0 else math.nan


def _mean(values: Array) -> float | None:
    return float(values.mean()) if len(values) else None


def _tie(judged: Judged) -> float:
    """Between 0 and 1, as if by chance, and the same again."""
    digest = hashlib.sha256(f"{judged.quantity} {judged.key}".encode()).digest()
    return (int.from_bytes(digest[:7]) + 0.5) / 2**56
