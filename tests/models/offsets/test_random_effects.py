"""Random effects: the textbook posterior, shrinkage, and limits of influence."""

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.models.offsets.evidence import Cell, Evidence, EvidenceSums
from presage.models.offsets.random_effects import FittedEffects, Spread, fit_effects

SPREAD = Spread({"device": 0.2, "job": 0.1}, cell=0.1, noise=0.03)
DEVICE = ("device", "gpu")


def evidence(job: str, error: float, device: str = "gpu") -> Evidence:
    return Evidence((device, job), ((("device", device), 1.0), (("job", job), 1.0)), error)


def fitted(added: list[Evidence], spread: Spread = SPREAD) -> FittedEffects:
    sums = EvidenceSums(3 * spread.total)
    for one in added:
        sums.add(one)
    return fit_effects(sums.cells, spread)


def test_no_evidence_gives_no_offset():
    assert fitted([]).offset(evidence("a", 0).terms, "any") == 0


def test_one_run_is_shared_out_by_variance():
    found = fitted([evidence("a", 0.1)])
    parts = np.array([0.2, 0.1, 0.1]) ** 2

    expected = 0.1 * parts / (parts.sum() + 0.03**2)
    assert found.effects[DEVICE] == pytest.approx(expected[0])
    assert found.effects["job", "a"] == pytest.approx(expected[1])
    assert found.cells["gpu", "a"] == pytest.approx(expected[2])
    assert found.runs[DEVICE] == 1


def test_effects_equal_those_of_the_dense_solution():
    rng = np.random.default_rng(0)
    names = [(device, job) for device in "xyz" for job in "abcdefg" if rng.random() < 0.7]
    errors = rng.normal(0, 0.1, len(names))
    found = fitted(
        [evidence(job, e, device) for (device, job), e in zip(names, errors, strict=True)]
    )

    effects = list(found.effects)
    z = np.array(
        [[("device", d) == effect or ("job", j) == effect for effect in effects] for d, j in names],
        dtype=float,
    )
    prior = np.diag(np.array([SPREAD.effects[str(effect[0])] ** 2 for effect in effects]))
    covariance = z @ prior @ z.T + SPREAD.of_cell(1) * np.eye(len(names))
    expected = prior @ z.T @ np.linalg.solve(covariance, errors)
    assert list(found.effects.values()) == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_device_that_is_slower_for_every_job_gets_the_whole_offset():
    found = fitted([evidence(f"job {i}", 0.3) for i in range(100)])

    assert found.effects[DEVICE] == pytest.approx(0.3, rel=0.02)
    assert found.offset(evidence("another", 0).terms) == pytest.approx(0.3, rel=0.02)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-0.5, 0.5)), min_size=1, max_size=12))
def test_an_offset_is_never_larger_than_the_largest_error(rows):
    found = fitted([evidence(job, error) for job, error in rows])

    largest = max(abs(error) for _, error in rows)
    for job in "abcd":
        offset = found.offset(evidence(job, 0).terms, ("gpu", job))
        assert abs(offset) <= largest * (1 + 1e-6) + 1e-9


def test_an_outcome_that_is_wrong_by_fifty_moves_a_known_device_little():
    good = [evidence(f"job {i}", 0.1) for i in range(10)]

    before, after = fitted(good), fitted([*good, evidence("wrong", np.log(50))])

    assert after.effects[DEVICE] - before.effects[DEVICE] < 0.04


def test_a_flood_of_runs_of_one_job_counts_as_one_job():
    good = [evidence(f"job {i}", 0.0) for i in range(5)]

    once, flood = (
        fitted([*good, evidence("loud", 0.3)]),
        fitted([*good, *[evidence("loud", 0.3)] * 999]),
    )

    assert flood.effects[DEVICE] - once.effects[DEVICE] < 0.01
    assert flood.effects[DEVICE] < 0.1


def test_a_level_without_a_variance_has_no_effect():
    found = fitted([evidence("a", 0.3)], Spread({"device": 0.2}, 0.1, 0.03))

    assert list(found.effects) == [DEVICE]


def test_weights_scale_an_effect():
    cells: dict[Hashable, Cell] = {
        i: Cell(((("device", "gpu"), float(i)),), 1, round(0.1 * i * 2**32)) for i in (1, 2, 3)
    }

    found = fit_effects(cells, Spread({"device": 10.0}, 0.01, 0.01))

    assert found.effects[DEVICE] == pytest.approx(0.1, rel=1e-3)
    assert found.offset(((DEVICE, 5.0),)) == pytest.approx(0.5, rel=1e-3)
