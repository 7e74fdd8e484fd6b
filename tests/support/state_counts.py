"""Pytest plugin that prints the state counts of explorations after the tests.

The slow tier also prints the shortest counter-example of each mutant.
"""

from __future__ import annotations

import os

import pytest

PROPERTY = "exploration"  # recorded by tests with record_property; works under xdist, too


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    lines = [str(value) for r in reports for name, value in r.user_properties if name == PROPERTY]
    if lines:
        terminalreporter.section("states of the machines of collectives")
    is_full = os.environ.get("PRESAGE_TEST_FAULTS") == "all"
    for text in lines:
        shown = text if is_full else text.splitlines()[0]
        terminalreporter.write_line(shown)
