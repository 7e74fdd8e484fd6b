"""Laws of the two-phase agreement in every reachable state, with faults (slow tier)."""

from __future__ import annotations

import pytest

from tests.collectives.explorer.catalogue import TWO_PHASE
from tests.collectives.explorer.laws import check
from tests.collectives.explorer.published import published_counts
from tests.support.slow_tests import all_faults
from tests.support.state_counts import PROPERTY


@all_faults
@pytest.mark.parametrize("config", TWO_PHASE, ids=lambda config: config.name)
def test_all_laws_hold_in_every_state(config, record_property):
    report = check(config)

    record_property(PROPERTY, str(report))
    assert report.law is None, str(report)
    assert (report.states, report.transitions) == published_counts()[config.name]
