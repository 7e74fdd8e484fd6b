"""Drift tests of outcomes against the guarantees of a release."""

import math
import pickle
import random
from dataclasses import replace

import pytest

from presage.models.drift.drift_test import (
    CHANGED,
    IN_DOMAIN,
    MISSED,
    NO_DRIFT,
    OUT_OF_DOMAIN,
    DriftMonitor,
    DriftPolicy,
    JudgedQuantity,
)

POLICY = DriftPolicy(false_alarm_outcomes=10_000)
PROMISES = {
    "step_time": {
        "": {"rows": 2000.0, "mape": 6.0, "below": 10.0, "above": 10.0, "in_domain": 95.0},
        "device gpu": {"rows": 1000.0, "mape": 5.0, "below": 9.0, "above": 9.0, "in_domain": 95.0},
        "family cnn": {"rows": 1000.0, "mape": 9.0, "below": 5.0, "above": 33.0, "in_domain": 40.0},
        "family mlp": {"rows": 8.0, "mape": 9.0, "below": 0.0, "above": 37.5, "in_domain": 95.0},
    }
}


def judged(key, measured=1.0, *, job="", quantity="step_time_s", **changes):
    found = JudgedQuantity(
        key=str(key), quantity=quantity, device_kind="gpu", family="mlp", job=job or f"job {key}",
        in_domain=True, measured=measured, low=0.8, median=1.0, high=1.25,
    )  # fmt: skip
    return replace(found, **changes)


def row_of(drift, quantity="step_time_s", slice_name=""):
    (row,) = [r for r in drift.rows() if (r.quantity, r.slice_name) == (quantity, slice_name)]
    return row


def new_jobs(count, times, seed=0, sigma=0.17, **changes):
    """Return one run of each job; at ``times`` 1, about 80 % are within the interval."""
    rng = random.Random(seed)
    return [judged(f"{seed} {i}", times * math.exp(rng.gauss(0, sigma)), **changes)
            for i in range(count)]  # fmt: skip


def runs_of_few(jobs, runs, times, seed=0):
    """Return runs of very different jobs with accurate forecasts."""
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
    drift = drift or DriftMonitor(PROMISES, POLICY)
    for outcome in outcomes:
        drift.add([outcome])
    return drift


def test_outcomes_within_the_guarantee_are_no_drift():
    drift = taking(new_jobs(3000, 1.0))

    assert {row.drift for row in drift.rows()} == {NO_DRIFT}
    row = row_of(drift)
    assert (row.jobs, row.runs, row.noticed_after) == (3000, 3000, None)
    assert 75 < row.coverage < 85
    assert row.evidence < 1


def test_jobs_a_third_slower_are_detected_within_thirty():
    drift = taking([*new_jobs(300, 1.0), *new_jobs(30, 1.35, seed=1)])

    for name in ("", "device gpu"):
        row = row_of(drift, slice_name=name)
        assert row.drift == MISSED
        assert 300 < row.noticed_after <= 330


def test_repeated_runs_are_no_evidence_against_the_interval():
    """If all runs of a few jobs miss, that is one error per job, not per run."""
    late = [judged(f"{run} {job}", 1.6, job=f"job {job}") for run in range(50) for job in range(3)]
    drift = taking(late)

    assert row_of(drift).drift == NO_DRIFT
    assert row_of(drift).coverage == 0


@pytest.mark.parametrize(("jobs", "before"), [(20, 1), (10, 10), (50, 3)])
def test_slower_repeated_jobs_are_detected_whatever_the_interval(jobs, before):
    drift = taking(runs_of_few(jobs, before, 1.0))
    assert row_of(drift).drift == NO_DRIFT
    taking(runs_of_few(jobs, -(-60 // jobs), 1.3, seed=1), drift)

    row = row_of(drift)
    assert row.drift == CHANGED
    assert row.noticed_after <= jobs * before + 60


def test_a_change_is_reported_until_it_ends():
    drift = taking(runs_of_few(10, 10, 1.0))
    taking(runs_of_few(10, 100, 1.3, seed=1), drift)
    assert row_of(drift).drift == CHANGED
    taking(runs_of_few(10, 30, 1.0, seed=2), drift)
    assert row_of(drift).drift == NO_DRIFT


def test_a_change_below_the_threshold_is_no_drift():
    drift = taking(runs_of_few(20, 20, 1.0))
    taking(runs_of_few(20, 10, 1.06, seed=1), drift)

    assert row_of(drift).evidence >= 1
    assert row_of(drift).drift == NO_DRIFT


def test_the_history_of_a_job_is_bounded():
    drift = taking(runs_of_few(2, 400, 1.0))
    before_bytes = len(pickle.dumps(drift))
    taking(runs_of_few(2, 400, 1.0, seed=1), drift)

    assert row_of(drift).drift == NO_DRIFT
    assert len(pickle.dumps(drift)) < before_bytes + 2 * 64 * 9  # at most 64 runs of each job


def test_unknown_slices_and_jobs_are_bounded(monkeypatch):
    monkeypatch.setattr("presage.models.drift.drift_test.MAX_JOBS", 50)
    drift = DriftMonitor(PROMISES, POLICY)
    for i in range(500):
        drift.add([judged(f"{i}", family=f"family {i}", device_kind=f"kind {i}")])

    assert {row.slice_name for row in drift.rows()} == {"", "device other", "family other"}
    assert (row_of(drift).jobs, row_of(drift).runs) == (500, 500)
    drift.add([judged("again", job="job 450")])  # the oldest of the last 50: it is known
    assert row_of(drift).jobs == 500
    drift.add([judged("again", job="job 449")])
    assert row_of(drift).jobs == 501


def test_out_of_domain_jobs_are_drift_of_the_input():
    drift = taking(new_jobs(100, 1.0))
    taking(new_jobs(40, 3.0, seed=1, in_domain=False), drift)

    assert row_of(drift, IN_DOMAIN).drift == OUT_OF_DOMAIN
    assert row_of(drift, IN_DOMAIN).promised_coverage == 95
    assert row_of(drift).drift == NO_DRIFT  # beyond the domain an interval promises nothing
    assert row_of(drift).runs == 140


def test_a_slice_is_tested_against_its_own_guarantee():
    """In the guarantee, a third of a family is above its interval and 60 % out of domain."""
    rng = random.Random(0)
    drift = taking(
        judged(
            i, 1.5 if rng.random() < 0.33 else 1.0, family="cnn", device_kind="new",
            in_domain=rng.random() < 0.4,
        )
        for i in range(3000)
    )  # fmt: skip

    row = row_of(drift, slice_name="family cnn")
    assert row.drift == NO_DRIFT
    assert (row.promised_mape, row.promised_coverage) == (9.0, pytest.approx(62))
    assert row_of(drift, IN_DOMAIN, "family cnn").drift == NO_DRIFT
    # Of what it does not know it promised what it did of all.
    assert row_of(drift, slice_name="device other").drift == MISSED
    assert row_of(drift, slice_name="device other").promised_mape == 6.0
    assert row_of(drift, IN_DOMAIN, "device other").drift == OUT_OF_DOMAIN


def test_guarantees_from_few_rows_allow_for_their_uncertainty():
    """With three of eight above, half of the next eight may be."""
    rng = random.Random(0)
    drift = taking(judged(i, 1.5 if rng.random() < 0.5 else 1.0) for i in range(1000))

    assert row_of(drift, slice_name="family mlp").drift == NO_DRIFT
    assert row_of(drift).drift == MISSED


def test_misses_end_when_repeated_jobs_match_their_forecasts():
    drift = taking(new_jobs(40, 1.5))
    assert row_of(drift).drift == MISSED
    taking([judged(f"again {i}", job="job 0 1") for i in range(300)], drift)
    assert row_of(drift).drift == NO_DRIFT


def test_a_change_of_one_device_is_not_reported_for_another():
    rng = random.Random(0)

    def run(kind, i, times):
        measured = times * math.exp(rng.gauss(0, 0.15))
        key = f"{kind} {times} {i}"
        return judged(key, measured, job=f"{kind} {i % 4}", device_kind=kind, low=0.1, high=10.0)

    guarantees = {"step_time": {f"device {kind}": {"rows": 100.0} for kind in "ab"}}
    drift = taking([run("a", i, 1.0) for i in range(400)], DriftMonitor(guarantees, POLICY))
    taking([run("b", i, 1.0) for i in range(8)], drift)
    for i in range(8, 1000):
        taking([run("a", i, 1.3), run("b", i, 1.0)], drift)

    assert row_of(drift, slice_name="device a").drift == CHANGED
    assert row_of(drift, slice_name="device b").drift == NO_DRIFT


def test_false_alarms_of_any_kind_are_as_rare_as_configured():
    """Over devices, families and quantities, with repeated and new jobs."""
    every, first = 100, []
    for seed in range(20):
        rng, drift = random.Random(seed), DriftMonitor(PROMISES, DriftPolicy(every))
        levels = [math.exp(rng.gauss(0, 1)) for _ in range(40)]
        for n in range(1, 600):
            job = rng.randrange(40) if rng.random() < 0.5 else 1000 + n
            level = levels[job] if job < 40 else 1.0
            drift.add(
                [
                    judged(
                        n, level * math.exp(rng.gauss(0, 0.17)), job=f"job {job}",
                        quantity=quantity, family=rng.choice(["mlp", "cnn", "gnn"]),
                        low=0.8 * level, median=level, high=1.25 * level,
                        in_domain=rng.random() < 0.95,
                    )
                    for quantity in ("step_time_s", "memory_bytes", "compute_utilization")
                ]
            )  # fmt: skip
            if n % 20 == 0 and any(row.noticed_after for row in drift.rows()):
                break
        first.append(n)
    assert sum(first) / len(first) > every


def test_without_guarantees_the_nominal_coverage_is_tested():
    drift = taking([*new_jobs(300, 1.0), *new_jobs(60, 1.35, seed=1)], DriftMonitor({}, POLICY))

    assert row_of(drift).drift == MISSED
    assert (row_of(drift).promised_mape, row_of(drift).promised_coverage) == (None, 80)


def test_a_runtime_is_tested_only_against_its_interval():
    drift = taking(new_jobs(40, 1.5, quantity="runtime_s"))

    assert row_of(drift, "runtime_s").drift == MISSED
    assert row_of(drift, "runtime_s").promised_mape is None


def test_an_unknown_family_is_no_slice():
    drift = taking(new_jobs(3, 1.0, family=""))

    assert {row.slice_name for row in drift.rows()} == {"", "device gpu"}


def test_equal_outcomes_in_equal_order_give_equal_rows():
    outcomes = runs_of_few(5, 20, 1.0)
    assert taking(outcomes).rows() == taking(outcomes).rows()


def test_figures_without_outcomes_are_none():
    drift = taking([judged("a", 0.0, median=0.0, low=0.0, high=0.0)])

    row = row_of(drift)
    assert (row.mape, row.ratio, row.change) == (None, None, None)
    assert row.coverage == 100


@pytest.mark.parametrize(
    "change",
    [{"false_alarm_outcomes": 0}, {"tolerance": 0.0}, {"least_change": math.nan}, {"window": 0}],
)
def test_an_invalid_drift_policy_is_an_error(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        DriftPolicy(**{"false_alarm_outcomes": 1} | change)
