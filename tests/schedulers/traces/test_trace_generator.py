"""Jobs that are made up are like those of the trace they are made from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.traces.csv_file import write_trace
from presage.schedulers.traces.formats import read_trace
from presage.schedulers.traces.generator import generate_trace
from presage.schedulers.traces.summary import dispersion, summarize
from presage.schedulers.traces.trace import Trace
from tests.pipelines.public_files import real
from tests.schedulers.clusters import job

HOUR, DAY = 3600.0, 86400.0


def durations(trace, gpus=None):
    return np.array(
        [trace.duration_s[one.job_id] for one in trace.jobs if gpus in {None, one.gpus}]
    )


def submissions(trace):
    return np.array([one.submit_s for one in trace.jobs])


def distance(some, others):
    """Return the Kolmogorov-Smirnov distance of two samples."""
    some, others = np.sort(some), np.sort(others)
    at = np.concatenate([some, others])
    below = [np.searchsorted(one, at, side="right") / len(one) for one in (some, others)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize(
    ("name", "rounds"), [("philly/philly.csv.gz", 2), ("microsoft_itp/cluster04.csv.gz", 10)]
)
def test_a_published_trace_is_matched_in_load_arrivals_gangs_durations_and_users(name, rounds):
    like = read_trace(real("traces") / name)
    count = rounds * len(like.jobs)
    made = generate_trace(like, count, seed=0)
    was, generated = summarize(like), summarize(made)

    assert generated.devices_busy == pytest.approx(was.devices_busy, rel=0.05)
    assert generated.arrival_dispersion == pytest.approx(was.arrival_dispersion, rel=0.1)
    assert generated.jobs / generated.span_s == pytest.approx(was.jobs / was.span_s, rel=0.05)
    assert distance(durations(like), durations(made)) < 0.01
    for gpus in (1, 2, 4, 8):
        assert generated.gangs[gpus] / count == pytest.approx(was.gangs[gpus] / was.jobs, abs=0.005)
        assert distance(durations(like, gpus), durations(made, gpus)) < 0.05
    for user, jobs in was.users.items():
        assert generated.users.get(user, 0) / count == pytest.approx(jobs / was.jobs, abs=0.02)


def trace_of(submit_s, **values):
    """Return a trace of jobs of an hour each."""
    made = tuple(job(f"t{i}", when, **values) for i, when in enumerate(sorted(submit_s)))
    return Trace(made, dict.fromkeys((one.job_id for one in made), HOUR))


def test_a_poisson_process_stays_one():
    rng = np.random.default_rng(1)
    like = trace_of(rng.uniform(0, 40 * DAY, 20_000))
    made = generate_trace(like, 20_000, seed=2)

    assert dispersion(submissions(like), HOUR) == pytest.approx(1.0, abs=0.1)
    # The mean of an hour of the week is that of six weeks, and noisy: a sixth more.
    assert dispersion(submissions(made), HOUR) == pytest.approx(7 / 6, abs=0.1)


def test_bursts_stay_bursts():
    rng = np.random.default_rng(1)
    bursts = rng.uniform(0, 60 * DAY, 400)
    like = trace_of(np.concatenate([at + rng.uniform(0, 600, 25) for at in bursts]))
    made = generate_trace(like, 40_000, seed=2)

    for bin_s in (600, HOUR, DAY):
        was = dispersion(submissions(like), bin_s)
        assert dispersion(submissions(made), bin_s) == pytest.approx(was, rel=0.15)


def test_no_jobs_arrive_at_night_or_on_the_sixth_and_seventh_day_of_the_week():
    rng = np.random.default_rng(1)
    at_s = np.concatenate([[0.0], rng.uniform(0, 70 * DAY, 20_000)])
    works = (at_s % DAY < 8 * HOUR) & (at_s // DAY % 7 < 5)
    made = submissions(generate_trace(trace_of(at_s[works]), 10_000, seed=2))

    assert made.max() > 21 * DAY
    assert (made % DAY < 8 * HOUR).all()
    assert (made // DAY % 7 < 5).all()


@st.composite
def traces(draw):
    """Draw at least two jobs, not all at one time."""
    step_s = draw(st.sampled_from((60.0, HOUR, DAY)))
    times = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12))
    gangs = draw(st.lists(st.sampled_from((1, 2, 8)), min_size=14, max_size=14))
    seconds = draw(st.lists(st.floats(0, 1e7), min_size=14, max_size=14))
    jobs = tuple(
        job(f"t{i}", steps * step_s, gpus=gangs[i], user=f"u{i % 3}", priority=gangs[i])
        for i, steps in enumerate(sorted((0, *times, 61)))
    )
    return Trace(jobs, {one.job_id: s for one, s in zip(jobs, seconds, strict=False)})


@settings(deadline=None)
@given(like=traces(), count=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_laws_of_generated_traces(like, count, seed):
    made = generate_trace(like, count, seed)
    kinds = {(one.gpus, one.user, one.priority) for one in like.jobs}

    assert [one.job_id for one in made.jobs if one.submit_s >= 0] == list(map(str, range(count)))
    assert (np.diff(submissions(made)) >= 0).all()
    for one in made.jobs:
        known = durations(like, one.gpus)
        assert (one.gpus, one.user, one.priority) in kinds
        assert known.min() - 1e-3 <= made.duration_s[one.job_id] <= known.max() + 1e-3
    assert generate_trace(like, count, seed) == made


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path):
    like = trace_of(np.random.default_rng(1).uniform(0, 9 * DAY, 300))
    for name, seed in (("first", 7), ("second", 7), ("other", 8)):
        write_trace(tmp_path / name, generate_trace(like, 500, seed))

    first, second, other = ((tmp_path / n).read_bytes() for n in ("first", "second", "other"))
    assert first == second != other


@pytest.mark.parametrize("submit_s", [(), (5.0,), (5.0, 5.0)])
def test_a_trace_without_a_rate_is_refused(submit_s):
    with pytest.raises(ConfigError, match=f"{len(submit_s)} jobs at one time have no arrival rate"):
        generate_trace(trace_of(submit_s), 10, seed=0)


def test_invalid_times_are_rejected():
    with pytest.raises(ConfigError, match="a trace of 86,400 days; give its times in seconds"):
        generate_trace(trace_of((0.0, 86_400 * DAY)), 10, seed=0)
