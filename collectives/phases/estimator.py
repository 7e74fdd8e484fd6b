"""Estimator of the phases of a job from the AllReduces that it has started.

A training job repeats the same AllReduces in every iteration. Their sizes show how many there are,
their times show the period and the position of each. ``observe`` is called on the path of each
AllReduce and only appends; ``estimate`` does the work, in another thread.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from presage.collectives.core.demand import Call
from presage.collectives.phases.history import History, read_history
from presage.collectives.phases.prior import Prior
from presage.collectives.phases.rhythm import (
    MARGIN_ITERATIONS,
    RECENT,
    count_since_change,
    cut_pauses,
    find_calls_per_iteration,
    interval_margin_s,
)
from presage.collectives.phases.switch_shifts import learn_shifts_s, starts_by_ring_s

HISTORY = 8192  # AllReduces that are kept
COVERAGE = 0.9
TOLERANCE = 0.01  # of predicted gradient bytes


@dataclass(frozen=True, slots=True)
class Phases:
    """Period of a job and the AllReduces of an iteration, on the clock of the observer.

    Attributes
    ----------
    period_s : float
        Duration of an iteration.
    calls : tuple of Call
        AllReduces of an iteration, in their order.
    anchor_number : int
        Number of an AllReduce that is the first one of its iteration.
    anchor_s : float
        Start of that iteration.
    margin_s : float
        Half of the width of the interval of an arrival.
    """

    period_s: float
    calls: tuple[Call, ...]
    anchor_number: int
    anchor_s: float
    margin_s: float

    def arrival_s(self, number: int) -> float:
        """Return the predicted start of an AllReduce."""
        iteration, position = divmod(number - self.anchor_number, len(self.calls))
        return self.anchor_s + iteration * self.period_s + self.calls[position].offset_s


class PhaseEstimator:
    """Estimator of the phases of one job.

    An iteration begins with the AllReduce after the longest gap. Sizes have to repeat for three
    iterations or more, until past predictions give an interval. Before, the prior gives the period
    and the interval, if there is one; afterwards it is dropped. If all sizes are equal, the
    gaps between AllReduces show how many there are in an iteration. Gaps of more than three
    iterations are pauses: they only shift what follows. A number that is missing, or a time that is
    not finite or lies before the previous one, ends what was learnt before it.

    Parameters
    ----------
    prior : Prior, optional
        Forecast for the first iterations.
    coverage : float
        Share of arrivals that the interval ``+- margin_s`` is to contain, within (0, 1).
    horizon : int
        Number of iterations ahead for which it is to contain them.
    clock : callable
        Monotonic clock of the times that are observed.

    Attributes
    ----------
    prior : Prior or None
        Forecast until the phases are learnt, then None. Another thread may set it.

    Raises
    ------
    ValueError
        ``coverage`` is outside (0, 1), or ``horizon`` is below 1.
    """

    def __init__(
        self,
        prior: Prior | None = None,
        *,
        coverage: float = COVERAGE,
        horizon: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < coverage < 1:
            raise ValueError(f"coverage={coverage}, must be between 0 and 1")
        if horizon < 1:
            raise ValueError(f"horizon={horizon}, must be at least 1")
        self.prior = prior
        self._coverage, self._horizon, self._clock = coverage, horizon, clock
        self._records: deque[tuple[int, float, int, bool]] = deque(maxlen=HISTORY)

    def observe(
        self, number: int, start_s: float, size_bytes: int, *, on_switch: bool = False
    ) -> None:
        """Record the start of an AllReduce, by ring or on the switch. Takes less than 1 us."""
        self._records.append((number, start_s, size_bytes, on_switch))

    def estimate(self) -> Phases | None:
        """Return the phases, or None if arrivals cannot be predicted: they count as "soon".

        Arrivals cannot be predicted if sizes do not repeat, or if the interval is as wide as an
        iteration. An arrival that is overdue, as in a pause, is predicted for now.
        """
        history = read_history(self._records)
        if not len(history):
            return None
        phases = self._from_history(history)
        if phases is not None:
            self.prior = None  # learnt: after a change of rhythm the forecast would be wrong
        else:
            phases = self._from_prior(history)
        if phases is None or phases.period_s <= 2 * phases.margin_s:
            return None
        overdue_s = self._clock() - phases.arrival_s(int(history.numbers[-1]) + 1)
        return replace(phases, anchor_s=phases.anchor_s + max(0.0, overdue_s))

    def _from_history(self, history: History) -> Phases | None:
        calls = find_calls_per_iteration(history)
        if calls is None:
            return None
        repeating = history.repeating(calls).last((MARGIN_ITERATIONS + RECENT + 1) * calls)
        shifts_s = learn_shifts_s(repeating, calls)
        by_ring = replace(repeating, starts_s=starts_by_ring_s(repeating, shifts_s))
        steady = replace(by_ring, starts_s=cut_pauses(by_ring.starts_s, calls))
        steady = steady.last(count_since_change(steady.starts_s, calls))
        margin_s = interval_margin_s(steady.starts_s, calls, self._horizon, self._coverage)
        if not math.isfinite(margin_s):
            return None  # too few iterations for an interval
        return _phases(steady.last((RECENT + 1) * calls), calls, margin_s, shifts_s)

    def _from_prior(self, history: History) -> Phases | None:
        """Use the newest AllReduces whose sizes sum to the gradient bytes as an iteration."""
        prior = self.prior
        if prior is None:
            return None
        sums = np.cumsum(history.sizes[::-1])
        calls = int(np.searchsorted(sums, (1 - TOLERANCE) * prior.gradient_bytes)) + 1
        if calls > len(history) or sums[calls - 1] > (1 + TOLERANCE) * prior.gradient_bytes:
            return None
        newest = history.last(calls)
        offsets = newest.starts_s - newest.starts_s[0]
        if offsets[-1] > prior.step_time_s:
            return None  # no iteration, or not by this forecast
        return Phases(
            period_s=prior.step_time_s,
            calls=_calls(offsets, newest.sizes, np.full(calls, math.nan)),
            anchor_number=int(newest.numbers[0]),
            anchor_s=float(newest.starts_s[0]),
            margin_s=prior.margin_s,
        )


def _phases(
    history: History, calls: int, margin_s: float, shifts_s: NDArray[np.float64]
) -> Phases | None:
    """Return the phases of a history of at least two iterations that repeats."""
    starts_s = history.starts_s
    period_s = float(np.median(starts_s[calls:] - starts_s[:-calls]))
    if period_s <= 0:
        return None
    gaps = np.diff(starts_s)
    middle = [np.median(gaps[i::calls]) for i in range(calls)]
    first = (int(np.argmax(middle)) + 1) % calls
    whole = (len(history) - first) // calls
    rows = starts_s[first : first + whole * calls].reshape(whole, calls)
    offsets = np.median(rows - rows[:, :1], axis=0)
    position = (len(history) - 1 - first) % calls
    return Phases(
        period_s=period_s,
        calls=_calls(
            offsets,
            history.sizes[first : first + calls],
            shifts_s[history.numbers[first : first + calls] % calls],
        ),
        anchor_number=int(history.numbers[-1]) - position,
        anchor_s=float(starts_s[-1] - offsets[position]),
        margin_s=margin_s,
    )


def _calls(offsets: np.ndarray, sizes: np.ndarray, shifts_s: np.ndarray) -> tuple[Call, ...]:
    return tuple(
        Call(float(offset), int(size), None if math.isnan(shift_s) else float(shift_s))
        for offset, size, shift_s in zip(offsets, sizes, shifts_s, strict=True)
    )
