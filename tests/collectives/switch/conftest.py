"""Both aggregators: each test of the contract runs with the compiled and the Python one."""

from __future__ import annotations

import shutil

import pytest

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess

IMPLEMENTATIONS = ("c", "python")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    if request.param == "c" and not shutil.which("cc"):
        pytest.skip("no C compiler")
    return request.param


@pytest.fixture
def start(implementation):
    """Start aggregators that end with the test."""
    started = []

    def start_one(token="", **options):
        switch = SwitchProcess(SwitchOptions(**options), token=token, implementation=implementation)
        started.append(switch)
        return switch

    yield start_one
    for switch in started:
        switch.close()


@pytest.fixture
def switch(start):
    """Aggregator with small chunks and a short lease."""
    return start(chunk_bytes=64, window=3, lease_ms=600)
