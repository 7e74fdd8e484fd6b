"""Clusters under faults drawn from a seed, and their histories checked by every law.

The long run, of at least 2,000 faults, is made by hand: ``python -m benchmarks.cluster_history``.
"""

from __future__ import annotations

import pytest

from tests.history.checker.laws import check, summary
from tests.history.record import read_history
from tests.history.runner.run import Settings, run
from tests.support.slow_tests import all_faults


def test_a_short_history_under_faults_breaks_no_law(tmp_path):
    settings = Settings(
        seed=1, faults=15, gap_s=0.5, nodes=2, clients=3, isolated=False, may_be_lost=False
    )

    history = read_history(run(tmp_path, settings))

    assert check(history) == []
    found = summary(history)
    assert sum(found["faults"].values()) == settings.faults
    assert found["operations"]["ok"] > 0
    assert found["attempts"] > 0


@all_faults
@pytest.mark.timeout(1200)
def test_a_history_with_lost_packets_full_disks_and_lost_nodes_breaks_no_law(tmp_path):
    history = read_history(run(tmp_path, Settings(seed=2, faults=80)))

    assert check(history) == []
    missing = next(entry.value["missing"] for entry in history if entry.kind == "meta")
    if missing:
        pytest.skip(f"all that could be tried holds; left out: {'; '.join(missing)}")
