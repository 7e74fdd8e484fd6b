"""Laws of the in-band agreement in every reachable state, with faults (slow tier)."""

from __future__ import annotations

import pytest

from tests.collectives.explorer.catalogue import IN_BAND
from tests.collectives.explorer.laws import check
from tests.collectives.explorer.mutants import MUTANTS
from tests.collectives.explorer.published import published_counts, published_mutants
from tests.support.slow_tests import all_faults
from tests.support.state_counts import PROPERTY


@all_faults
@pytest.mark.parametrize("config", IN_BAND, ids=lambda config: config.name)
def test_all_laws_hold_in_every_state(config, record_property):
    report = check(config)

    record_property(PROPERTY, str(report))
    assert report.law is None, str(report)
    assert (report.states, report.transitions) == published_counts()[config.name]


@all_faults
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.is_slow], ids=lambda mutant: mutant.guard
)
def test_a_machine_without_a_guard_breaks_a_law(mutant, monkeypatch, record_property):
    mutant.remove(monkeypatch)

    report = check(mutant.config)

    record_property(PROPERTY, f"without the guard that {mutant.guard}: {report}")
    assert report.law in mutant.laws, str(report)
    assert (report.law, len(report.path)) == published_mutants()[mutant.guard]
