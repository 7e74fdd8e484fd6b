"""Tasks in processes of a machine; tests/pipelines/stages/test_ray_stages.py has a cluster's."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from presage.errors import ConfigError, TrainingError
from presage.system.processes import spread as spreading
from presage.system.processes.spread import ADDRESS_VARIABLE, spread


@pytest.fixture(autouse=True)
def _new_connection(monkeypatch):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    spreading._cluster.cache_clear()
    monkeypatch.setattr("joblib.cpu_count", lambda **_: 2)
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

    with pytest.raises(TrainingError, match=r"too few rows: [12]"):
        list(spread(work, [1, 2], is_long=True))


def test_one_task_needs_no_other_process():
    assert list(spread(lambda item: (item, os.getpid()), [1], is_long=True)) == [(1, os.getpid())]


def test_the_processor_of_a_machine_that_has_one_runs_long_tasks(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda **_: 1)

    found = list(spread(lambda _: os.getpid(), [1, 2], is_long=True))
    assert found == [os.getpid()] * 2


def test_a_killed_process_is_an_error_of_one_line():
    def work(item: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ConfigError, match=r"^a process was killed, perhaps for lack of memory; "):
        list(spread(work, [1, 2], is_long=True))


TRAIN = """
import sys, time
from contextlib import closing
from presage.pipelines.stages.stage import run_stage
from presage.system.processes.spread import spread

def main():
    with closing(spread(time.sleep, [60, 60, 60, 60], is_long=True)):
        print("training", flush=True)
        time.sleep(60)

import joblib
joblib.cpu_count = lambda **_: 2
run_stage(main)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_a_stage_is_ended(sent):
    stage = subprocess.Popen(
        [sys.executable, "-c", TRAIN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert stage.stdout is not None
        assert stage.stdout.readline() == "training\n"
        processes = psutil.Process(stage.pid).children(recursive=True)
        end_s = time.monotonic() + 60
        while len(processes) < 3 and time.monotonic() < end_s:  # two, and joblib's own
            time.sleep(0.05)
            processes = psutil.Process(stage.pid).children(recursive=True)
        stage.send_signal(sent)
        stage.wait(60)
        _, left = psutil.wait_procs(processes, timeout=20)
        assert left == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(stage.pid, signal.SIGKILL)
        stage.wait()
