"""How many copies of a trial share a device, by the rule of the policy ``packing``. Pure."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

from presage.errors import ConfigError, PresageError, one_line
from presage.features.job.job_description import JobFeatures
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.backend import make_ledger
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import Forecaster, Forecasts, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.reports.reported_progress import Progress
from presage.schedulers.core.state import State
from presage.schedulers.policies.packing.compatibility import Limits
from presage.schedulers.policies.packing.packing_policy import MOST_SLOWDOWN, Packing
from presage.system.text.units import counted

MOST_TRIALS = 4
DEFAULT_LIMITS = Limits(MOST_SLOWDOWN, MOST_TRIALS, 1.0)
_GIB = 2**30


class TrialSharing(NamedTuple):
    """Decision about a trial on a device.

    Attributes
    ----------
    trials : int
        Number of copies of the trial that share the device; 1 for an exclusive device.
    memory_bytes : int or None
        Bound of the memory of each; None without a usable forecast.
    slowdown : float
        Largest predicted slowdown of any of them, at least 1.
    reason : str
        Why there are no more trials on the device.
    """

    trials: int
    memory_bytes: int | None
    slowdown: float
    reason: str


def check_limits(limits: Limits) -> None:
    """Check limits of sharing.

    Raises
    ------
    ConfigError
        A limit is below 1 or infinite, or allows two trials to be slower than one after the other.
    """
    limits.check("resources")
    if limits.most_slowdown >= 2:
        raise ConfigError(
            f"resources: most_slowdown={limits.most_slowdown:g}, must be below 2: else two trials "
            "at once may take longer than one after the other"
        )


def share_device(
    trial: JobFeatures,
    kind: str,
    memory_bytes: int,
    forecaster: Forecaster,
    limits: Limits = DEFAULT_LIMITS,
) -> TrialSharing:
    """Return how many copies of a trial the policy ``packing`` starts on one idle device.

    Each of them gets its bound of memory, so that the sum of the bounds is within the device, and
    no predicted slowdown exceeds the limit. As the bounds hold with a probability of one minus the
    forecaster's risk, and errors for copies of one trial have one sign, the sum exceeds the device
    with a probability of at most the risk.

    Parameters
    ----------
    kind : str
        Kind of the device.
    memory_bytes : int
        Memory of the device.

    Raises
    ------
    ConfigError
        As raised by :func:`check_limits`.
    """
    check_limits(limits)
    jobs = [_job(trial, number) for number in range(limits.most_members + 1)]
    try:
        (found,) = forecaster.predictions([(jobs[0], kind)])
    except (PresageError, ValueError, ArithmeticError) as error:
        return _exclusive(f"no forecast: {one_line(error)}")
    if problem := _problem(found, memory_bytes):
        return _exclusive(problem)
    assert found is not None
    cluster = Cluster((Node("node", 1, kind, memory_bytes),))
    forecasts = Forecasts(forecaster, cluster)
    trials = _started(jobs[: limits.most_members], cluster, forecasts, limits)
    (slowdowns,) = forecasts.slowdowns([(kind, tuple(jobs[:trials]))]) if trials > 1 else ((1.0,),)
    reason = _limit(jobs[: trials + 1], kind, memory_bytes, found, forecasts, limits)
    return TrialSharing(trials, found.memory_bytes, max(slowdowns), reason)


def _job(trial: JobFeatures, number: int) -> Job:
    return Job(f"trial-{number}", 0.0, iterations=trial.job.iterations, features=trial)


def _started(jobs: list[Job], cluster: Cluster, forecasts: Forecasts, limits: Limits) -> int:
    policy = Packing(*limits)
    ledger = make_ledger(cluster, policy, forecasts)
    forecasts.expect(jobs)
    for job in jobs:
        ledger.submit(job, 0.0)
    state = State(ledger, 0.0, Progress())
    return len(policy.decide(state, forecasts, Random(0)))  # noqa: S311 - policies want one


def _problem(found: RuntimePrediction | None, memory_bytes: int) -> str:
    """Return why a trial needs an exclusive device, whatever it is co-located with; "" if not."""
    if found is None or not _is_usable(found):
        return "no forecast: the predictor has none for this trial on this device"
    if not found.in_domain:
        release = f" of release {found.release_id}" if found.release_id else ""
        return f"the trial or the device is outside the training data{release}"
    if found.memory_bytes > memory_bytes:
        return f"it may need {_gib(found.memory_bytes)}, and the device has {_gib(memory_bytes)}"
    return ""


def _is_usable(found: RuntimePrediction) -> bool:
    values = found.compute_milli, found.memory_bytes
    return all(math.isfinite(value) for value in values) and min(values) >= 0 < found.memory_bytes


def _exclusive(reason: str) -> TrialSharing:
    return TrialSharing(1, None, 1.0, reason)


def _limit(
    jobs: list[Job],
    kind: str,
    memory_bytes: int,
    found: RuntimePrediction,
    forecasts: Forecasts,
    limits: Limits,
) -> str:
    """Return the limit that so many trials would exceed."""
    count = len(jobs)
    if count > limits.most_members:
        return f"the limit is {counted(limits.most_members, 'trial')} on a device"
    together_bytes = count * found.memory_bytes
    if together_bytes > memory_bytes:
        return f"{count} may need {_gib(together_bytes)}, and the device has {_gib(memory_bytes)}"
    compute = count * limits.needs(found)[0] / FULL_DEVICE_MILLI
    if compute > 1:
        return f"{count} are predicted to use {compute:.0%} of the device"
    (slowdowns,) = forecasts.slowdowns([(kind, tuple(jobs))])
    if math.isinf(max(slowdowns)):
        return f"no forecast of the slowdown of {count}{_because(forecasts)}"
    if max(slowdowns) > limits.most_slowdown:
        slower = max(slowdowns)
        return f"{count} are predicted to be {slower:.2f} times as slow, the limit is " + (
            f"{limits.most_slowdown:g}"
        )
    raise AssertionError(f"packing starts {count - 1} of {count} trials, which no limit explains")


def _because(forecasts: Forecasts) -> str:
    failed = next(iter(forecasts.failures), "")
    return f" ({one_line(failed)})" if failed else ", which is outside the training data"


def _gib(memory_bytes: float) -> str:
    return f"{memory_bytes / _GIB:.2f} GiB"
