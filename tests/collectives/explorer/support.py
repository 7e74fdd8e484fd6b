"""Run of the explorer in tests: the tables of state counts are printed with -s or on failure."""

from __future__ import annotations

import os

import pytest

from tests.collectives.explorer.laws import Report

slow_tier = pytest.mark.skipif(
    os.environ.get("PRESAGE_TEST_FAULTS") != "all", reason="takes long; PRESAGE_TEST_FAULTS=all"
)


def show(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    """Print a report even when the test passes."""
    with capsys.disabled():
        print(f"\n{report}", end="")
