"""Laws of the in-band agreement in every reachable state, with faults (slow tier)."""

from __future__ import annotations

import pytest

from tests.collectives.explorer.catalogue import IN_BAND
from tests.collectives.explorer.laws import check
from tests.collectives.explorer.mutants import MUTANTS
from tests.collectives.explorer.support import show, slow_tier


@slow_tier
@pytest.mark.parametrize("config", IN_BAND, ids=lambda config: config.name)
def test_all_laws_hold_in_every_state(config, capsys):
    report = check(config)

    show(report, capsys)
    assert report.law is None, str(report)


@slow_tier
@pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.is_slow], ids=lambda mutant: mutant.guard
)
def test_a_machine_without_a_guard_breaks_a_law(mutant, monkeypatch, capsys):
    mutant.remove(monkeypatch)

    report = check(mutant.config)

    show(report, capsys)
    assert report.law in mutant.laws, str(report)
