"""Tasks in processes of a machine; tests/pipelines/stages/test_ray_stages.py has a cluster's."""

import os
import time

import pytest

from presage.errors import ConfigError, TrainingError
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


def test_long_tasks_run_in_other_processes_and_return_in_order():
    def work(base: int, item: int) -> tuple[int, int]:
        return base + item, os.getpid()

    found = list(spread(work, [3, 1, 2], shared=(10,), is_long=True))
    assert [value for value, _ in found] == [13, 11, 12]
    assert os.getpid() not in {process for _, process in found}


def test_a_long_task_begins_before_its_result_is_read(tmp_path):
    def work(name: str) -> str:
        (tmp_path / name).touch()
        return name

    found = spread(work, ["a", "b"], is_long=True)
    end_s = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end_s:
        time.sleep(0.01)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    assert list(found) == ["a", "b"]


def test_the_error_of_a_long_task_is_raised_here():
    def work(item: int) -> int:
        raise TrainingError(f"too few rows: {item}")

    with pytest.raises(TrainingError, match="too few rows: 1"):
        list(spread(work, [1, 2], is_long=True))


def test_one_task_needs_no_other_process():
    assert list(spread(lambda item: (item, os.getpid()), [1], is_long=True)) == [(1, os.getpid())]
