"""Answers to "when will it start?": distributions of start and end, and what they rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from presage.schedulers.what_if.variant import AS_REQUESTED, Variant


class Verdict(StrEnum):
    """Kind of an answer."""

    PREDICTED = "predicted"
    STARTED = "started"  # it runs, or did; only its end is predicted
    UNKNOWN = "unknown"  # it depends on run times that cannot be predicted
    IMPOSSIBLE = "impossible"  # no device or node of the cluster can ever run it


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of a time, as one value for each simulated future.

    Attributes
    ----------
    samples_s : tuple of float
        Seconds from the time of the question, in ascending order; infinite beyond the horizon.
    """

    samples_s: tuple[float, ...]

    def quantile_s(self, probability: float) -> float:
        """Return the time at or before which the event occurs with a probability.

        The quantile of few samples is taken so that intervals cover the true time as often as they
        say (Weibull's plotting positions); infinite if it is beyond the horizon.
        """
        count = len(self.samples_s)
        position = min(max(probability * (count + 1) - 1, 0.0), count - 1.0)
        below = math.floor(position)
        low_s, part = self.samples_s[below], position - below
        if part == 0 or low_s == math.inf:
            return low_s
        return low_s + part * (self.samples_s[below + 1] - low_s)

    def probability_within(self, seconds: float) -> float:
        """Return the probability that the event occurs within a time, at most the horizon."""
        return sum(sample_s <= seconds for sample_s in self.samples_s) / len(self.samples_s)


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer rests on.

    Attributes
    ----------
    at_s : float
        Time of the state, by the cluster's clock.
    samples : int
        Number of simulated futures.
    horizon_s : float
        Seconds for which each future was simulated at most.
    policy : str
        Policy of the simulations.
    run_times : dict of str to int
        Number of jobs by the origin of their run times.
    assumptions : tuple of str
        Sentences without a capital letter and a full stop.
    """

    at_s: float
    samples: int
    horizon_s: float
    policy: str
    run_times: dict[str, int] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """When a job starts and ends, under one variant of its request.

    Attributes
    ----------
    start, end : Distribution or None
        None if it is unknown, impossible, or was not requested.
    why : str
        Reason for which the start, or the end, is unknown or impossible; "" without one.
    """

    job_id: str
    variant: Variant = AS_REQUESTED
    verdict: Verdict = Verdict.PREDICTED
    start: Distribution | None = None
    end: Distribution | None = None
    why: str = ""
    basis: Basis | None = None


def distribution(samples_s: Sequence[float]) -> Distribution:
    """Return the distribution of samples in any order."""
    return Distribution(tuple(sorted(samples_s)))
