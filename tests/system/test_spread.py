"""Tasks in this process; those on a cluster are in tests/pipelines/stages/test_ray_stages.py."""

import pytest

from presage.errors import ConfigError
from presage.system.processes import spread as spreading
from presage.system.processes.spread import ADDRESS_VARIABLE, spread


@pytest.fixture(autouse=True)
def _new_connection(monkeypatch):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    spreading._cluster.cache_clear()
    yield
    spreading._cluster.cache_clear()


def test_without_a_cluster_tasks_run_here_in_order_as_results_are_read():
    ran = []

    def add(base: int, item: int) -> int:
        ran.append(item)
        return base + item

    found = spread(add, [3, 1, 2], shared=(10,))
    assert next(found) == 13
    assert ran == [3]
    assert list(found) == [11, 12]


def test_the_error_of_a_missing_cluster_names_the_variable(monkeypatch):
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"PRESAGE_RAY=127\.0\.0\.1:1: no Ray cluster there"):
        list(spread(abs, [1]))
