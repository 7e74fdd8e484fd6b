"""Variances that are recovered from errors drawn with known ones."""

import numpy as np
import pytest

from presage.models.offsets.spread_fit import estimate_spread


def drawn(devices: int, jobs: int, deviations: tuple[float, float, float]):
    rng = np.random.default_rng(1)
    of_device, of_job = rng.normal(0, deviations[0], devices), rng.normal(0, deviations[1], jobs)
    terms = [
        ((("device", str(d)), 1.0), (("job", str(j)), 1.0))
        for d in range(devices)
        for j in range(jobs)
    ]
    rest = rng.normal(0, deviations[2], (devices, jobs))
    return (of_device[:, None] + of_job + rest).ravel(), terms


def test_variances_are_recovered():
    errors, terms = drawn(30, 20, (0.3, 0.15, 0.1))

    found = estimate_spread(errors, terms, ["device", "job"], noise=0.0)

    assert found.effects["device"] == pytest.approx(0.3, rel=0.3)
    assert found.effects["job"] == pytest.approx(0.15, rel=0.4)
    assert found.cell == pytest.approx(0.1, rel=0.1)


def test_an_effect_that_does_not_exist_gets_almost_no_variance():
    errors, terms = drawn(20, 20, (0.0, 0.2, 0.1))

    assert estimate_spread(errors, terms, ["device", "job"]).effects["device"] < 0.02


def test_one_wild_error_does_not_set_the_variances():
    errors, terms = drawn(20, 20, (0.2, 0.1, 0.1))
    errors[0] = 8.0

    assert estimate_spread(errors, terms, ["device", "job"]).cell < 0.15
