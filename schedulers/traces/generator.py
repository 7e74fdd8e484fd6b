"""Any number of jobs like those of a trace.

Arrivals are a doubly stochastic Poisson process. Every day that is generated goes by a day of the
trace, on the same day of the week where the trace has two weeks or more; each of them has its turn
before one has it again (a balanced bootstrap). Each job of the day comes Poisson(s) times, and each
of all days that it might have gone by Poisson((1 - s) / their number) times, in its minute of the
day. s, from 0 (only the hours of the week matter) to 1 (days are as they were), is what gives the
arrivals an hour the variance of the trace's: s^2 = 1 - mean / variance, the variance being that
around the mean of each hour of the week. The last day counts as a day, however soon the trace ends;
all days have so many more jobs that the rate is the trace's. One of less than two days tells only
a rate.

So a job comes with whoever came with it, and gang size, user, share and all else that is known of
it stay together. Its duration is drawn anew between those next to it among the jobs of its gang
size, evenly in the logarithm. What does not recur within a week is lost: a busy month, a deadline.

References
----------
Davison, Hinkley, Schechtman: Efficient bootstrap simulation, Biometrika 73(3), 1986.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from presage.errors import ConfigError
from presage.schedulers.traces.row import MOST_S
from presage.schedulers.traces.summary import HOUR_S
from presage.schedulers.traces.trace import Trace
from presage.system.arrays import Array, Int64s

MOST_JOBS = 10_000_000  # of one drawing: they take minutes, and 6 GB
_MINUTE_S, _DAY_S = 60.0, 86400.0
_CENTURY_S = 36_525 * _DAY_S
_HOURS, _WEEK = 24, 7
_MILLISECONDS = 3  # digits of times


def generated(like: Trace, jobs: int, seed: int) -> Trace:
    """So many jobs, called "0", "1", ...; equal seeds give equal traces.

    Raises
    ------
    ConfigError
        The trace has less than two jobs, or all come at once: there is no rate to go by. Or it
        spans more than a century, or what is generated would be more than ``MOST_JOBS`` or span
        more than ``MOST_S``.
    """
    if jobs > MOST_JOBS:
        raise ConfigError(f"{jobs:,} jobs; at most {MOST_JOBS:,} are generated: ask for fewer")
    at_s = np.array([job.submit_s for job in like.jobs])
    if len(at_s) < 2 or at_s[0] == at_s[-1]:
        raise ConfigError(
            f"{len(at_s)} jobs at one time tell no rate; generate from a trace of some hours"
        )
    at_s -= at_s[0]
    if at_s[-1] > _CENTURY_S:
        raise ConfigError(f"a trace of {at_s[-1] / _DAY_S:,.0f} days; give its times in seconds")
    if at_s[-1] * jobs / len(at_s) > MOST_S:
        raise ConfigError(
            f"{jobs:,} jobs at the rate of the trace come in more than {MOST_S:g} s, the longest "
            "that a trace can be; ask for fewer"
        )
    rng = np.random.default_rng(seed)
    draw = _by_days if at_s[-1] >= 2 * _DAY_S else _by_rate
    submit_s, source = draw(at_s, jobs, rng)
    duration_s = _durations(like, source, rng)
    made = tuple(
        replace(like.jobs[i], job_id=str(number), submit_s=when_s)
        for number, (i, when_s) in enumerate(
            zip(source.tolist(), submit_s.round(_MILLISECONDS).tolist(), strict=True)
        )
    )
    seconds = duration_s.round(_MILLISECONDS).tolist()
    return Trace(made, {job.job_id: s for job, s in zip(made, seconds, strict=True)})


def _by_rate(at_s: Array, jobs: int, rng: Generator) -> tuple[Array, Int64s]:
    """When jobs come at the mean rate, and which of the trace's each is like."""
    rounds = [rng.permutation(len(at_s)) for _ in range(math.ceil(jobs / len(at_s)))]
    until_s = at_s[-1] * jobs / len(at_s)
    return np.sort(rng.uniform(0, until_s, jobs)), np.concatenate(rounds)[:jobs]


def _by_days(at_s: Array, jobs: int, rng: Generator) -> tuple[Array, Int64s]:
    """When jobs come day by day, and which of the trace's each is like."""
    days = int(at_s[-1] // _DAY_S) + 1
    fill = days * _DAY_S / at_s[-1]
    week = _WEEK if days >= 2 * _WEEK else 1
    strength = _strength(at_s, days, week)
    wanted = 1 + math.ceil(jobs / len(at_s) * at_s[-1] / _DAY_S)
    while True:
        day, source = _days(
            at_s, _turns(days, week, wanted, rng), days, week, own=strength * fill,
            background=(1.0 - strength) * fill, rng=rng,
        )  # fmt: skip
        if len(source) >= jobs:
            break
        wanted += 1 + wanted // 8
    minute_s = at_s[source] % _DAY_S // _MINUTE_S * _MINUTE_S
    when_s = day * _DAY_S + minute_s + rng.uniform(0, _MINUTE_S, len(source))
    order = np.argsort(when_s, kind="stable")[:jobs]
    return when_s[order], source[order]


def _strength(at_s: Array, days: int, week: int) -> float:
    """How much of a day's own there is in a day: s above."""
    hours = np.bincount((at_s // HOUR_S).astype(np.int64), minlength=days * _HOURS)
    counts = hours.reshape(days, _HOURS).astype(np.float64)
    residual = np.concatenate([counts[i::week] - counts[i::week].mean(axis=0) for i in range(week)])
    variance = float((residual**2).mean())
    return math.sqrt(max(0.0, 1.0 - counts.mean() / variance)) if variance else 0.0


def _turns(days: int, week: int, wanted: int, rng: Generator) -> Int64s:
    """The trace's day that each of the wanted days goes by."""
    turns = np.empty(wanted, dtype=np.int64)
    for weekday in range(week):
        alike = np.arange(weekday, days, week)
        slots = len(turns[weekday::week])
        rounds = [rng.permutation(alike) for _ in range(math.ceil(slots / len(alike)))]
        turns[weekday::week] = np.concatenate(rounds)[:slots] if rounds else ()
    return turns


def _days(
    at_s: Array, turns: Int64s, days: int, week: int, *, own: float, background: float,
    rng: Generator,
) -> tuple[Int64s, Int64s]:  # fmt: skip
    """Day and source of every job, in no order.

    ``own`` is how often a job of the day comes on average, ``background`` how often all those do
    together that came on one of the days like it in the same place.
    """
    day_of = (at_s // _DAY_S).astype(np.int64)
    starts = np.searchsorted(day_of, np.arange(days + 1))
    size = np.diff(starts)[turns]
    there = np.repeat(starts[turns] - (np.cumsum(size) - size), size) + np.arange(size.sum())
    times = rng.poisson(own, len(there))
    day = [np.repeat(np.repeat(np.arange(len(turns)), size), times)]
    source = [np.repeat(there, times)]
    for weekday in range(week):
        pool = np.flatnonzero(day_of % week == weekday)
        slots = np.arange(weekday, len(turns), week)
        mean = background * len(pool) / len(range(weekday, days, week))
        count = rng.poisson(mean, len(slots))
        day.append(np.repeat(slots, count))
        source.append(pool[rng.integers(max(1, len(pool)), size=count.sum())])
    return np.concatenate(day), np.concatenate(source)


def _durations(like: Trace, source: Int64s, rng: Generator) -> Array:
    """Of jobs like those, between the durations next to theirs."""
    gpus = np.array([job.gpus for job in like.jobs])
    known = np.log1p([like.duration_s[job.job_id] for job in like.jobs])
    drawn, nudge = np.empty(len(source)), rng.uniform(-0.5, 0.5, len(source))
    for gang in np.unique(gpus):
        members = np.flatnonzero(gpus == gang)
        order = members[np.argsort(known[members], kind="stable")]
        rank = np.empty(len(gpus))
        rank[order] = np.arange(len(order))
        of_gang = gpus[source] == gang
        place = rank[source[of_gang]] + nudge[of_gang]
        drawn[of_gang] = np.interp(place, np.arange(len(order)), known[order])
    return np.expm1(drawn)
