"""SLO checks of latency-sensitive jobs (N3, N7)."""

from __future__ import annotations

import math

from presage.schedulers.core.forecasts import RuntimePrediction

SLACK_MILLI = 50  # a smaller excess over the predicted use is noise
ROUNDED = 1 + 1e-9  # tolerance: a job that is as fast as predicted must not violate its SLO


def remaining_s(
    done: float, elapsed_s: float, prediction: RuntimePrediction, pace_s: float = 0.0
) -> float:
    """Return the remaining run time of a job in seconds; infinite if no forecast is available.

    It is the predicted time of the remaining iterations, or their time at the present speed if that
    is longer (docs/decisions/0034).

    Parameters
    ----------
    pace_s : float
        Run time of the whole job at its present speed; 0 if unknown.
    """
    return max(prediction.remaining_s(done, elapsed_s), (1.0 - done) * pace_s)


def is_violated(
    elapsed_s: float,
    done: float,
    prediction: RuntimePrediction,
    pace_s: float = 0.0,
    reserve: float = 0.0,
) -> bool:
    """Return whether elapsed and remaining time exceed the SLO (N3).

    The remaining time is that of :func:`remaining_s`. The SLO is the predicted upper bound on the
    kind of device, since noise would violate a median. Without a forecast no SLO is violated.

    Parameters
    ----------
    pace_s : float
        As in :func:`remaining_s`.
    reserve : float
        Fraction of the margin between the predicted run time and the SLO that is held back.
    """
    return slack_s(elapsed_s, done, prediction, pace_s, reserve) < 0


def slack_s(
    elapsed_s: float,
    done: float,
    prediction: RuntimePrediction,
    pace_s: float = 0.0,
    reserve: float = 0.0,
) -> float:
    """Return the time that is left of the SLO when the job ends; negative if it is violated.

    Parameters are as of :func:`is_violated`. At the same pace it falls by at most a second each
    second. Infinite without a forecast.
    """
    reserve_s = reserve * max(0.0, prediction.slo_s - prediction.runtime_s) if reserve else 0.0
    if prediction.slo_s == math.inf:
        return math.inf
    ends_s = elapsed_s + remaining_s(done, elapsed_s, prediction, pace_s)
    return (prediction.slo_s - reserve_s) * ROUNDED - ends_s


def is_too_busy(usage_milli: float, prediction: RuntimePrediction) -> bool:
    """Return whether a job uses more compute than predicted (N7).

    Parameters
    ----------
    usage_milli : float
        Mean over a window, with paused time.
    """
    return usage_milli > prediction.compute_milli + SLACK_MILLI
