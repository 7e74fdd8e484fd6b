"""Fixture of a live cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.schedulers.live.cluster", "tests.schedulers.live.scenario")

from tests.schedulers.live.cluster import LiveCluster  # noqa: E402
from tests.schedulers.live.faults.network import Network, network  # noqa: E402


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def wire() -> Iterator[Network]:
    """Network between a node and the rest of the cluster, that a test can cut."""
    with network() as made:
        if made is None:
            pytest.skip("no network namespace can be made on this machine; run the tests as root")
        yield made
