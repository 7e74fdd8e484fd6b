"""Laws of the machines in every reachable state of small configurations, in a few seconds."""

from __future__ import annotations

import pytest

from tests.collectives.explorer.catalogue import SMALL
from tests.collectives.explorer.laws import check
from tests.collectives.explorer.mutants import MUTANTS
from tests.support.state_counts import PROPERTY

IS_FAST = [mutant for mutant in MUTANTS if not mutant.is_slow]


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config.name)
def test_all_laws_hold_in_a_small_configuration(config, record_property):
    report = check(config)

    record_property(PROPERTY, str(report))
    assert report.law is None, str(report)
    assert report.states > 100


@pytest.mark.parametrize("mutant", IS_FAST, ids=lambda mutant: mutant.guard)
def test_a_machine_without_a_guard_breaks_a_law(mutant, monkeypatch, record_property):
    mutant.remove(monkeypatch)

    report = check(mutant.config)

    record_property(PROPERTY, f"without the guard that {mutant.guard}: {report}")
    assert report.law in mutant.laws, str(report)
    assert report.path, "no counter-example"


@pytest.mark.parametrize("mutant", IS_FAST, ids=lambda mutant: mutant.guard)
def test_with_the_guard_the_same_configuration_keeps_that_law(mutant):
    report = check(mutant.config)

    assert report.law is None, str(report)
