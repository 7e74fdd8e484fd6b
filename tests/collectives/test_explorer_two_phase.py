"""Laws of the two-phase agreement in every reachable state, with faults (slow tier)."""

from __future__ import annotations

import pytest

from tests.collectives.explorer.catalogue import TWO_PHASE
from tests.collectives.explorer.laws import check
from tests.collectives.explorer.support import show, slow_tier


@slow_tier
@pytest.mark.parametrize("config", TWO_PHASE, ids=lambda config: config.name)
def test_all_laws_hold_in_every_state(config, capsys):
    report = check(config)

    show(report, capsys)
    assert report.law is None, str(report)
