"""Fixture of a live cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.schedulers.live.cluster", "tests.schedulers.live.scenario")

from tests.schedulers.live.cluster import LiveCluster  # noqa: E402


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path)
    yield cluster
    cluster.close()
