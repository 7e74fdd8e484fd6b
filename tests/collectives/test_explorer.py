"""Laws of the machines in every reachable state of small configurations, in a few seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.collectives.explorer.catalogue import IN_BAND, SMALL, TWO_PHASE
from tests.collectives.explorer.laws import check
from tests.collectives.explorer.mutants import MUTANTS
from tests.collectives.explorer.published import published_counts, published_mutants
from tests.support.state_counts import PROPERTY

IS_FAST = [mutant for mutant in MUTANTS if not mutant.is_slow]


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config.name)
def test_all_laws_hold_in_a_small_configuration(config, record_property):
    report = check(config)

    record_property(PROPERTY, str(report))
    assert report.law is None, str(report)
    assert (report.states, report.transitions) == published_counts()[config.name]


def test_the_published_configurations_and_mutants_are_those_that_are_explored():
    counts = published_counts()
    configs = {config.name for config in (*SMALL, *IN_BAND, *TWO_PHASE)}
    sums = counts.pop(f"both, all {len(configs)}")

    assert counts.keys() == configs
    assert sums == tuple(map(sum, zip(*counts.values(), strict=True)))
    assert published_mutants().keys() == {mutant.guard for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", IS_FAST, ids=lambda mutant: mutant.guard)
def test_a_machine_without_a_guard_breaks_a_law(mutant, monkeypatch, record_property):
    mutant.remove(monkeypatch)

    report = check(mutant.config)

    record_property(PROPERTY, f"without the guard that {mutant.guard}: {report}")
    assert report.law in mutant.laws, str(report)
    assert (report.law, len(report.path)) == published_mutants()[mutant.guard]


@pytest.mark.parametrize("mutant", IS_FAST, ids=lambda mutant: mutant.guard)
def test_with_the_guard_the_same_configuration_keeps_that_law(mutant):
    report = check(mutant.config)

    assert report.law is None, str(report)


@pytest.mark.parametrize(
    "config",
    [c for c in SMALL if len(c.sizes) == 1 and c.name != "two_phase, one job, first view"],
    ids=lambda c: c.name,
)
def test_reductions_do_not_change_the_verdict_on_the_machines(config):
    whole, reduced = check(replace(config, is_reduced=False)), check(config)

    assert whole.law is reduced.law is None, str(whole)
    assert whole.states > 1.5 * reduced.states


@pytest.mark.parametrize(
    "mutant", [m for m in IS_FAST if len(m.config.sizes) == 1], ids=lambda mutant: mutant.guard
)
def test_reductions_do_not_change_the_verdict_on_a_mutant(mutant, monkeypatch):
    mutant.remove(monkeypatch)

    whole = check(replace(mutant.config, is_reduced=False))

    assert whole.law in mutant.laws, str(whole)
