"""Switches, arbiters and jobs that end with the test."""

from __future__ import annotations

import pytest

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess
from tests.collectives.arbiter.support.processes import ArbiterProcess, JobProcesses


@pytest.fixture
def opened():
    """List of what is to be closed; the newest first."""
    found: list = []
    yield found
    for one in reversed(found):
        one.close()


@pytest.fixture
def start_switch(opened):
    def start(**options):
        settings = SwitchOptions(**{"controlled": True, "lease_ms": 1000, **options})
        opened.append(SwitchProcess(settings, implementation="auto"))
        return opened[-1]

    return start


@pytest.fixture
def start_arbiter(opened, tmp_path):
    def start(switch, *more, journal="arbiter.db", **settings):
        opened.append(ArbiterProcess(switch, tmp_path / journal, *more, **settings))
        return opened[-1]

    return start


@pytest.fixture
def start_job(opened, tmp_path):
    def start(target, job, ranks=2, **options):
        opened.append(JobProcesses(tmp_path / "jobs", target, job, ranks, **options))
        return opened[-1]

    return start
