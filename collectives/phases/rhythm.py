"""Rhythm of a history: how many AllReduces an iteration has, and how well it is predicted."""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from presage.collectives.phases.history import History

MIN_ITERATIONS = 3
LARGEST_MULTIPLE = 16
SAME = 0.05  # of a gap: errors that differ by less are equal, and the smaller multiple counts
COMPARED = 512  # newest gaps that are compared to find a multiple
MARGIN_ITERATIONS = 32
MIN_ERRORS = 3
RECENT = 8  # iterations that period and positions are computed from
PAUSE_PERIODS = 3
CHANGE = 0.25


def find_calls_per_iteration(history: History) -> int | None:
    """Return the number of AllReduces of an iteration, or None if sizes do not repeat.

    It is the smallest number after which most of the newest sizes repeat, or a multiple of it if
    gaps repeat much better after that: of equal sizes, or of an optimizer that steps after several
    synchronized micro-batches.
    """
    repeated = _smallest_repetition(history.sizes)
    if repeated is None:
        return None
    return repeated * _multiple(history.repeating(repeated), repeated)


def _smallest_repetition(sizes: NDArray[np.int64]) -> int | None:
    """Return after how many of them most of the newest sizes repeat, for at least 3 iterations."""
    best, longest = None, 0
    for calls in len(sizes) - 1 - np.flatnonzero(sizes[:-1] == sizes[-1])[::-1]:
        if MIN_ITERATIONS * int(calls) > len(sizes) or longest == len(sizes):
            break
        differs = np.flatnonzero(sizes[calls:] != sizes[:-calls])
        repeating = len(sizes) - int(differs[-1]) - 1 if len(differs) else len(sizes)
        if repeating > longest and repeating >= MIN_ITERATIONS * calls:
            best, longest = int(calls), repeating
    return best


def _multiple(history: History, calls: int) -> int:
    """Return after how many times ``calls`` AllReduces their gaps repeat.

    Gaps after AllReduces by ring and on the switch are not compared with one another.
    """
    gaps, on_switch = np.diff(history.starts_s), history.on_switch[:-1]
    most = min(LARGEST_MULTIPLE, len(gaps) // (MIN_ITERATIONS * calls))
    if most < 2:
        return 1
    # All multiples are compared at the same gaps.
    count = min(len(gaps) - most * calls, max(COMPARED, most * calls))
    newest = slice(len(gaps) - count, len(gaps))
    errors_s = []
    for shift in range(calls, (most + 1) * calls, calls):
        earlier = slice(newest.start - shift, newest.stop - shift)
        is_same = on_switch[newest] == on_switch[earlier]
        errors = abs(gaps[newest] - gaps[earlier])
        errors_s.append(_trimmed_mean(errors[is_same] if is_same.any() else errors))
    best_s, usual_s = min(errors_s), float(gaps[newest].mean())
    if best_s > 0.5 * errors_s[0] or errors_s[0] < 0.01 * usual_s:
        return 1
    limit_s = max(1.5 * best_s, best_s + SAME * usual_s)
    return next(k for k, error_s in enumerate(errors_s, 1) if error_s <= limit_s)


def _trimmed_mean(errors_s: NDArray[np.float64]) -> float:
    """Return the mean without the largest 5 %, which pauses cause."""
    kept = max(1, math.floor(0.95 * len(errors_s)))
    return float(np.sort(errors_s)[:kept].mean())


def cut_pauses(starts_s: NDArray[np.float64], calls: int) -> NDArray[np.float64]:
    """Return times without pauses: evaluations and checkpoints, which no rhythm predicts.

    A pause is a gap of more than ``PAUSE_PERIODS`` iterations. It is replaced by the median of the
    gaps at its position of the iteration.
    """
    period_s = np.median((starts_s[calls:] - starts_s[:-calls])[-RECENT * calls :])
    gaps = np.diff(starts_s)
    for pause in np.flatnonzero(gaps > PAUSE_PERIODS * period_s):
        gaps[pause] = np.median(gaps[pause % calls :: calls])
    passed_s = np.concatenate([[0.0], np.cumsum(gaps)])
    return np.asarray(passed_s + (starts_s[-1] - passed_s[-1]))


def count_since_change(starts_s: NDArray[np.float64], calls: int) -> int:
    """Return the number of AllReduces since the rhythm has changed; all if it has not.

    It has changed before the newest iterations if the three before them are all longer, or all
    shorter, by more than a quarter.
    """
    durations = (-np.diff(starts_s[::-1][::calls])).tolist()  # of iterations, the newest first
    for end in range(MIN_ITERATIONS, len(durations) - MIN_ITERATIONS + 1):
        usual_s = statistics.median(durations[: min(end, RECENT)])
        older = durations[end : end + MIN_ITERATIONS]
        if min(older) > (1 + CHANGE) * usual_s or max(older) < (1 - CHANGE) * usual_s:
            return end * calls + 1
    return len(starts_s)


def interval_margin_s(
    starts_s: NDArray[np.float64], calls: int, horizon: int, coverage: float
) -> float:
    """Return half of the width of the interval of an arrival, from the errors of past predictions.

    Each past AllReduce is predicted from the one ``horizon`` iterations before it and the median
    period of ``RECENT`` iterations until then. The margin is the conformal quantile of the errors;
    of too few for one, twice the largest.

    Parameters
    ----------
    starts_s : array of float, shape (records,)
        Starts of AllReduces of at least two iterations.
    """
    ahead = min(horizon, max(1, len(starts_s) // calls - 2))
    periods = starts_s[calls:] - starts_s[:-calls]
    errors: list[NDArray[np.float64]] = []
    for end in range(len(starts_s), ahead * calls, -calls)[:MARGIN_ITERATIONS]:
        begin = max(end - calls, ahead * calls)
        known = periods[: max(0, begin - ahead * calls - calls + 1)][-RECENT * calls :]
        if not len(known):
            break
        passed_s = starts_s[begin:end] - starts_s[begin - ahead * calls : end - ahead * calls]
        errors.append(abs(passed_s - ahead * np.median(known)))
    found = np.sort(np.concatenate(errors)) if errors else np.zeros(0)
    if len(found) < MIN_ERRORS:
        return math.inf
    rank = math.ceil((len(found) + 1) * coverage)
    return float(found[rank - 1] if rank <= len(found) else 2 * found[-1])
