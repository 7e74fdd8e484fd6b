"""Costs of the simulator against the recorded times of docs/benchmarks/inc_switch.md (I9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.collectives.core.costs import Link
from presage.collectives.core.demand import Call
from presage.collectives.simulation.phased_job import PhasedJob, Way

PAGE = Path(__file__).parents[3] / "docs/benchmarks/inc_switch.md"
TOLERANCE = 0.10  # headers, acknowledgements and a busy processor are not in the costs


def measured():
    """Return (Mbit/s, ranks, MB, ring s, switch s) of each row of the C aggregator."""
    rows = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "C":
            ring_s, switch_s = (float(cell.split()[0]) for cell in cells[4:6])
            rows.append((float(cells[1]), int(cells[2]), float(cells[3]), ring_s, switch_s))
    return rows


def test_all_rows_are_read():
    assert len(measured()) >= 6


@pytest.mark.parametrize(("mbit", "ranks", "megabytes", "ring_s", "switch_s"), measured())
def test_i9_costs_agree_with_measured_allreduces(mbit, ranks, megabytes, ring_s, switch_s):
    link = Link(latency_s=0.0, bandwidth_bytes_per_s=mbit * 1e6 / 8)
    job = PhasedJob("a", ranks, ("s",), link, (Call(0.0, int(megabytes * 1e6)),))

    assert job.duration_s(Way.RING, 0) == pytest.approx(ring_s, rel=TOLERANCE)
    assert job.duration_s(Way.INC, 0) == pytest.approx(switch_s, rel=TOLERANCE)
