"""Fixture of a live cluster for elastic jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "tests.schedulers.live.elastic.elastic_cluster", "tests.schedulers.live.elastic.laws"
)

from tests.schedulers.live.elastic.elastic_cluster import ElasticCluster  # noqa: E402


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[ElasticCluster]:
    cluster = ElasticCluster(tmp_path)
    yield cluster
    cluster.close()
