"""What outcomes add up to, beside what their release promised."""

import math
import random
from dataclasses import replace

import pytest

from presage.models.drift import (
    CHANGED,
    IN_DOMAIN,
    MISSES,
    NO_DRIFT,
    STRANGERS,
    Drift,
    DriftPolicy,
    Judged,
)

POLICY = DriftPolicy(false_alarm_outcomes=10_000)
PROMISES = {
    "step_time": {
        "": {"rows": 200.0, "mape": 6.0, "coverage_80%": 80.0, "in_domain": 95.0},
        "device gpu": {"rows": 100.0, "mape": 5.0, "coverage_80%": 82.0},
        "family cnn": {"rows": 180.0, "mape": 9.0, "coverage_80%": 60.0},
    }
}


def judged(key, measured=1.0, *, job="", quantity="step_time_s", **changes):
    found = Judged(
        key=str(key), quantity=quantity, device_kind="gpu", family="mlp", job=job or f"job {key}",
        in_domain=True, measured=measured, low=0.8, median=1.0, high=1.25,
    )  # fmt: skip
    return replace(found, **changes)


def row_of(drift, quantity="step_time_s", slice_name=""):
    (row,) = [r for r in drift.rows() if (r.quantity, r.slice_name) == (quantity, slice_name)]
    return row


def new_jobs(count, times, seed=0, sigma=0.17, **changes):
    """Of each job one run, of which about eight in ten are in the interval at ``times`` 1."""
    rng = random.Random(seed)
    return [judged(f"{seed} {i}", times * math.exp(rng.gauss(0, sigma)), **changes)
            for i in range(count)]  # fmt: skip


def runs_of_few(jobs, runs, times, seed=0):
    """Of jobs that differ by much, and are foretold well."""
    rng = random.Random(seed)
    return [
        judged(
            f"{seed} {run} {job}", level * times * math.exp(rng.gauss(0, 0.03)), job=f"job {job}",
            low=level / 2, median=level, high=2 * level,
        )
        for run in range(runs)
        for job, level in enumerate(range(1, jobs + 1))
    ]  # fmt: skip


def taking(outcomes, drift=None):
    drift = drift or Drift(PROMISES, POLICY)
    for outcome in outcomes:
        drift.add([outcome])
    return drift


def test_outcomes_as_promised_are_no_drift():
    drift = taking(new_jobs(3000, 1.0))

    assert {row.drift for row in drift.rows()} == {NO_DRIFT}
    row = row_of(drift)
    assert (row.jobs, row.runs, row.noticed_after) == (3000, 3000, None)
    assert 75 < row.coverage < 85
    assert row.evidence < 1


def test_jobs_that_take_longer_by_a_third_are_noticed_in_thirty():
    drift = taking([*new_jobs(300, 1.0), *new_jobs(30, 1.35, seed=1)])

    for name in ("", "device gpu", "family mlp"):
        row = row_of(drift, slice_name=name)
        assert row.drift == MISSES
        assert 300 < row.noticed_after <= 330


def test_the_same_jobs_again_are_no_proof_against_the_interval():
    """All runs of a few jobs miss: that is one mistake for each job, not one for each run."""
    late = [judged(f"{run} {job}", 1.6, job=f"job {job}") for run in range(50) for job in range(3)]
    drift = taking(late)

    assert row_of(drift).drift == NO_DRIFT
    assert row_of(drift).coverage == 0


@pytest.mark.parametrize(("jobs", "before"), [(20, 1), (10, 10), (50, 3)])
def test_jobs_seen_before_that_take_longer_are_noticed_wherever_the_interval_is(jobs, before):
    drift = taking(runs_of_few(jobs, before, 1.0))
    assert row_of(drift).drift == NO_DRIFT
    taking(runs_of_few(jobs, -(-60 // jobs), 1.3, seed=1), drift)

    row = row_of(drift)
    assert row.drift == CHANGED
    assert row.noticed_after <= jobs * before + 60


def test_a_change_lasts_until_it_is_over():
    drift = taking(runs_of_few(10, 10, 1.0))
    taking(runs_of_few(10, 100, 1.3, seed=1), drift)
    assert row_of(drift).drift == CHANGED
    taking(runs_of_few(10, 30, 1.0, seed=2), drift)
    assert row_of(drift).drift == NO_DRIFT


def test_a_change_that_matters_to_nobody_is_no_drift():
    drift = taking(runs_of_few(20, 20, 1.0))
    taking(runs_of_few(20, 10, 1.06, seed=1), drift)

    assert row_of(drift).evidence >= 1
    assert row_of(drift).drift == NO_DRIFT


def test_a_job_that_runs_for_ever_is_remembered_in_part():
    drift = taking(runs_of_few(2, 400, 1.0))

    assert row_of(drift).drift == NO_DRIFT
    assert max(len(runs) for of_job in drift._jobs.values() for runs in of_job.values()) <= 64


def test_what_callers_name_is_remembered_in_part(monkeypatch):
    monkeypatch.setattr("presage.models.drift._MOST_JOBS", 50)
    drift = Drift(PROMISES, POLICY)
    for i in range(500):
        drift.add([judged(f"{i}", family=f"family {i}", device_kind=f"kind {i}")])

    assert len(drift._jobs) == 50
    assert len(drift.rows()) <= 2 * (200 + 2)
    assert row_of(drift, slice_name="family other").runs > 300
    assert row_of(drift).runs == 500


def test_jobs_that_training_did_not_know_are_drift_of_the_input():
    drift = taking(new_jobs(100, 1.0))
    taking(new_jobs(40, 3.0, seed=1, in_domain=False), drift)

    assert row_of(drift, IN_DOMAIN).drift == STRANGERS
    assert row_of(drift, IN_DOMAIN).promised_coverage == 95
    assert row_of(drift).drift == NO_DRIFT  # beyond the domain an interval promises nothing
    assert row_of(drift).runs == 140


def test_a_slice_is_held_to_what_was_promised_of_it():
    """On a family whose intervals were known to cover six in ten, about so many do."""
    half = new_jobs(2500, 1.0, sigma=0.3, family="cnn", device_kind="new")
    drift = taking(half)

    row = row_of(drift, slice_name="family cnn")
    assert row.drift == NO_DRIFT
    assert (row.promised_mape, row.promised_coverage) == (9.0, pytest.approx(62))
    assert row_of(drift, slice_name="device new").drift == MISSES
    assert row_of(drift, slice_name="device new").promised_mape == 6.0


def test_a_release_that_promises_nothing_is_held_to_what_its_intervals_say():
    drift = taking([*new_jobs(300, 1.0), *new_jobs(60, 1.35, seed=1)], Drift({}, POLICY))

    assert row_of(drift).drift == MISSES
    assert (row_of(drift).promised_mape, row_of(drift).promised_coverage) == (None, 80)


def test_a_runtime_is_held_to_its_interval_alone():
    drift = taking(new_jobs(40, 1.5, quantity="runtime_s"))

    assert row_of(drift, "runtime_s").drift == MISSES
    assert row_of(drift, "runtime_s").promised_mape is None


def test_a_family_that_was_not_told_is_none():
    drift = taking(new_jobs(3, 1.0, family=""))

    assert {row.slice_name for row in drift.rows()} == {"", "device gpu"}


def test_equal_outcomes_in_equal_order_make_equal_rows():
    outcomes = runs_of_few(5, 20, 1.0)
    assert taking(outcomes).rows() == taking(outcomes).rows()


def test_a_figure_of_nothing_is_not_known():
    drift = taking([judged("a", 0.0, median=0.0, low=0.0, high=0.0)])

    row = row_of(drift)
    assert (row.mape, row.ratio, row.change) == (None, None, None)
    assert row.coverage == 100


@pytest.mark.parametrize(
    "change",
    [{"false_alarm_outcomes": 0}, {"tolerance": 0.0}, {"least_change": math.nan}, {"window": 0}],
)
def test_a_policy_of_no_use_is_named(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        DriftPolicy(**{"false_alarm_outcomes": 1} | change)
