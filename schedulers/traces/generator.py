"""Generator of traces with any number of jobs, from the statistics of a given trace.

Arrivals are a doubly stochastic Poisson process. Every generated day resamples a day of the trace,
with the same day of the week if the trace has two weeks or more; all days are used once before any
is used again (a balanced bootstrap). Each job of that day occurs Poisson(s) times, and each job of
all eligible days Poisson((1 - s) / their number) times, in its minute of the day. s ranges from 0
(only the hours of the week matter) to 1 (days are kept as they were). It gives the arrivals per
hour the variance of the trace: s^2 = 1 - mean / variance, where the variance is around the mean of
each hour of the week. The last, incomplete day counts as a day, and all days are scaled up to the
rate of the trace. From a trace of less than two days only the rate is used.

Jobs of one day thus stay together, as do a job's gang size, user, share and all other fields. Its
duration is drawn between its neighbors among the jobs of the same gang size, uniformly in the
logarithm. Patterns longer than a week are lost, such as a busy month or a deadline.

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

MOST_JOBS = 10_000_000  # in one trace: they take minutes and 6 GB
_MINUTE_S, _DAY_S = 60.0, 86400.0
_CENTURY_S = 36_525 * _DAY_S
_HOURS, _WEEK = 24, 7
_MILLISECONDS = 3  # digits of times


def generate_trace(like: Trace, jobs: int, seed: int) -> Trace:
    """Generate a trace of ``jobs`` jobs named "0", "1", ...; equal seeds give equal traces.

    Raises
    ------
    ConfigError
        The trace has no arrival rate (less than two jobs, or all at once) or spans more than a
        century; or the result would have more than ``MOST_JOBS`` jobs or span more than
        ``MOST_S``.
    """
    if jobs > MOST_JOBS:
        raise ConfigError(f"{jobs:,} jobs; at most {MOST_JOBS:,} can be generated; request fewer")
    at_s = np.array([job.submit_s for job in like.jobs])
    if len(at_s) < 2 or at_s[0] == at_s[-1]:
        raise ConfigError(
            f"{len(at_s)} jobs at one time have no arrival rate; use a trace of several hours"
        )
    at_s -= at_s[0]
    if at_s[-1] > _CENTURY_S:
        raise ConfigError(f"a trace of {at_s[-1] / _DAY_S:,.0f} days; give its times in seconds")
    if at_s[-1] * jobs / len(at_s) > MOST_S:
        raise ConfigError(
            f"{jobs:,} jobs at the rate of the trace take more than {MOST_S:g} s, the longest "
            "trace; request fewer"
        )
    rng = np.random.default_rng(seed)
    draw = _draw_by_days if at_s[-1] >= 2 * _DAY_S else _draw_by_rate
    submit_s, source = draw(at_s, jobs, rng)
    duration_s = _draw_durations(like, source, rng)
    generated = tuple(
        replace(like.jobs[i], job_id=str(number), submit_s=when_s)
        for number, (i, when_s) in enumerate(
            zip(source.tolist(), submit_s.round(_MILLISECONDS).tolist(), strict=True)
        )
    )
    seconds = duration_s.round(_MILLISECONDS).tolist()
    return Trace(generated, {job.job_id: s for job, s in zip(generated, seconds, strict=True)})


def _draw_by_rate(at_s: Array, jobs: int, rng: Generator) -> tuple[Array, Int64s]:
    """Draw submission times at the mean rate, and the index of each job's source in the trace."""
    rounds = [rng.permutation(len(at_s)) for _ in range(math.ceil(jobs / len(at_s)))]
    until_s = at_s[-1] * jobs / len(at_s)
    return np.sort(rng.uniform(0, until_s, jobs)), np.concatenate(rounds)[:jobs]


def _draw_by_days(at_s: Array, jobs: int, rng: Generator) -> tuple[Array, Int64s]:
    """Draw submission times day by day, and the index of each job's source in the trace."""
    days = int(at_s[-1] // _DAY_S) + 1
    fill = days * _DAY_S / at_s[-1]
    week = _WEEK if days >= 2 * _WEEK else 1
    strength = _day_strength(at_s, days, week)
    count = 1 + math.ceil(jobs / len(at_s) * at_s[-1] / _DAY_S)
    while True:
        day, source = _draw_jobs_of_days(
            at_s, _draw_days(days, week, count, rng), days, week, own=strength * fill,
            background=(1.0 - strength) * fill, rng=rng,
        )  # fmt: skip
        if len(source) >= jobs:
            break
        count += 1 + count // 8
    minute_s = at_s[source] % _DAY_S // _MINUTE_S * _MINUTE_S
    when_s = day * _DAY_S + minute_s + rng.uniform(0, _MINUTE_S, len(source))
    order = np.argsort(when_s, kind="stable")[:jobs]
    return when_s[order], source[order]


def _day_strength(at_s: Array, days: int, week: int) -> float:
    """Return s: the fraction of a day's variation that is its own."""
    hours = np.bincount((at_s // HOUR_S).astype(np.int64), minlength=days * _HOURS)
    counts = hours.reshape(days, _HOURS).astype(np.float64)
    residual = np.concatenate([counts[i::week] - counts[i::week].mean(axis=0) for i in range(week)])
    variance = float((residual**2).mean())
    return math.sqrt(max(0.0, 1.0 - counts.mean() / variance)) if variance else 0.0


def _draw_days(days: int, week: int, count: int, rng: Generator) -> Int64s:
    """Draw the day of the trace that each of ``count`` generated days resamples."""
    drawn = np.empty(count, dtype=np.int64)
    for weekday in range(week):
        eligible = np.arange(weekday, days, week)
        slots = len(drawn[weekday::week])
        rounds = [rng.permutation(eligible) for _ in range(math.ceil(slots / len(eligible)))]
        drawn[weekday::week] = np.concatenate(rounds)[:slots] if rounds else ()
    return drawn


def _draw_jobs_of_days(
    at_s: Array, drawn: Int64s, days: int, week: int, *, own: float, background: float,
    rng: Generator,
) -> tuple[Int64s, Int64s]:  # fmt: skip
    """Draw the generated day and the source of every job, unordered.

    ``own`` is the mean number of occurrences of a job of the drawn day; ``background`` is the mean
    number of draws from all eligible days, relative to the jobs of a mean day.
    """
    day_of = (at_s // _DAY_S).astype(np.int64)
    starts = np.searchsorted(day_of, np.arange(days + 1))
    size = np.diff(starts)[drawn]
    jobs = np.repeat(starts[drawn] - (np.cumsum(size) - size), size) + np.arange(size.sum())
    times = rng.poisson(own, len(jobs))
    day = [np.repeat(np.repeat(np.arange(len(drawn)), size), times)]
    source = [np.repeat(jobs, times)]
    for weekday in range(week):
        pool = np.flatnonzero(day_of % week == weekday)
        slots = np.arange(weekday, len(drawn), week)
        mean = background * len(pool) / len(range(weekday, days, week))
        count = rng.poisson(mean, len(slots))
        day.append(np.repeat(slots, count))
        source.append(pool[rng.integers(max(1, len(pool)), size=count.sum())])
    return np.concatenate(day), np.concatenate(source)


def _draw_durations(like: Trace, source: Int64s, rng: Generator) -> Array:
    """Draw the duration of each job between the neighbors of its source's duration."""
    gpus = np.array([job.gpus for job in like.jobs])
    known = np.log1p([like.duration_s[job.job_id] for job in like.jobs])
    drawn, nudge = np.empty(len(source)), rng.uniform(-0.5, 0.5, len(source))
    for gang in np.unique(gpus):
        members = np.flatnonzero(gpus == gang)
        order = members[np.argsort(known[members], kind="stable")]
        rank = np.empty(len(gpus))
        rank[order] = np.arange(len(order))
        in_gang = gpus[source] == gang
        position = rank[source[in_gang]] + nudge[in_gang]
        drawn[in_gang] = np.interp(position, np.arange(len(order)), known[order])
    return np.expm1(drawn)
