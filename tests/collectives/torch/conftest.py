"""Switches, arbiters and jobs that end with the test."""

from __future__ import annotations

import pytest

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess
from tests.collectives.torch.arbiter import TestArbiter
from tests.collectives.torch.job import Job


@pytest.fixture
def ending():
    """Things to close at the end of the test."""
    things = []
    yield things
    for thing in reversed(things):
        thing.close()


@pytest.fixture
def start_switch(ending):
    def start(**options):
        switch = SwitchProcess(SwitchOptions(**options))
        ending.append(switch)
        return switch

    return start


@pytest.fixture
def start_arbiter(ending):
    def start(ranks=2, **more):
        arbiter = TestArbiter("job", ranks, **more)
        ending.append(arbiter)
        return arbiter

    return start


@pytest.fixture
def start_job(ending):
    def start(scenario, *arguments, **more):
        job = Job(scenario, *arguments, **more)
        ending.append(job)
        return job

    return start
