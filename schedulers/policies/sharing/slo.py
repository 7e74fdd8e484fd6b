"""Whether a latency-sensitive job will be done when it was promised to be (N3, N7)."""

from __future__ import annotations

from presage.schedulers.core.forecasts import RuntimePrediction

SLACK_MILLI = 50  # busier than foretold by less is noise
ROUNDED = 1 + 1e-9  # or a job that is as fast as foretold were late by what sums are rounded


def rest_s(
    done: float, elapsed_s: float, prediction: RuntimePrediction, pace_s: float = 0.0
) -> float:
    """What a job still takes, in seconds; infinite where nothing is foretold.

    The model's answer for so many fewer iterations, or what they take at the present pace, if that
    is longer (docs/decisions/0034).

    Parameters
    ----------
    pace_s : float
        Seconds that all of the job would take as it runs now; 0 where nobody can tell.
    """
    return max(prediction.remaining_s(done, elapsed_s), (1.0 - done) * pace_s)


def violated(
    elapsed_s: float,
    done: float,
    prediction: RuntimePrediction,
    pace_s: float = 0.0,
    reserve: float = 0.0,
) -> bool:
    """Whether time so far and what is foretold of the rest are beyond the preset time (N3).

    The rest is that of :func:`rest_s`. The preset time is what the job was promised on its kind of
    device: an upper bound, for with a median any noise would be a violation. Never, where nothing
    is foretold.

    Parameters
    ----------
    pace_s : float
        As :func:`rest_s` has it.
    reserve : float
        Part of the margin between what was foretold and the preset time that is kept in hand.
    """
    kept_s = reserve * max(0.0, prediction.promised_s - prediction.runtime_s) if reserve else 0.0
    ends_s = elapsed_s + rest_s(done, elapsed_s, prediction, pace_s)
    return ends_s > (prediction.promised_s - kept_s) * ROUNDED


def too_busy(usage_milli: float, prediction: RuntimePrediction) -> bool:
    """Whether a job keeps its device busier than it was foretold to (N7).

    Parameters
    ----------
    usage_milli : float
        Mean over a window, also of the time that it was paused.
    """
    return usage_milli > prediction.compute_milli + SLACK_MILLI
