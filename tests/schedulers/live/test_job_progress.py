"""Progress reports of jobs, including invalid ones."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import presage
from presage.schedulers.live import job_progress as progress
from presage.schedulers.live.job_progress import Report, begin, read_progress
from tests.support.waiting import wait_until

GIB = 2**30

SOURCE = str(Path(presage.__file__).parent.parent)


@pytest.fixture
def places(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setenv("PRESAGE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("PRESAGE_CHECKPOINT", str(tmp_path / "checkpoints"))
    monkeypatch.delenv("PRESAGE_MEMORY_BYTES", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = signal.getsignal(signal.SIGUSR1)
    yield tmp_path
    signal.signal(signal.SIGUSR1, before)


def reported(places: Path) -> Report:
    report = read_progress(places / "progress.json")
    assert report is not None
    return report


def test_progress_has_no_effect_outside_of_a_cluster(tmp_path, monkeypatch):
    for name in ("PRESAGE_PROGRESS", "PRESAGE_CHECKPOINT", "PRESAGE_MEMORY_BYTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGUSR1)

    run = begin(iterations=10)
    run.step(1)
    run.step(10)

    assert run.saved(10)
    assert (run.first, run.checkpoint_folder, run.checkpoint_requested) == (0, None, False)
    assert signal.getsignal(signal.SIGUSR1) == before
    assert list(tmp_path.iterdir()) == []


def test_the_first_and_the_last_step_are_written_at_once_and_others_rarely(places):
    run = begin(iterations=1000)
    assert reported(places)[:3] == (1000, 0, 0)
    run.step(1)
    assert reported(places).done == 1
    began_s = time.monotonic()
    run.step(2)
    if time.monotonic() - began_s < 0.4:
        assert reported(places).done == 1
    run.step(1000)
    assert reported(places).done == 1000


def test_steps_are_written_after_an_interval(places):
    run, steps = begin(iterations=10**9), itertools.count(1)

    def is_reported() -> bool:
        run.step(next(steps))
        return reported(places).done >= 2

    wait_until(is_reported)
    assert abs(reported(places).done_at_s - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60


def test_a_step_costs_less_than_two_microseconds(places):
    run = begin(iterations=10**9)
    best_s = 1.0
    for _ in range(5):
        began_s = time.perf_counter()
        for done in range(20_000):
            run.step(done)
        best_s = min(best_s, (time.perf_counter() - began_s) / 20_000)

    assert best_s < 10e-6  # 0.25e-6 on an idle machine


def test_the_next_attempt_gets_the_saved_checkpoint(places):
    run = begin(iterations=1000)
    run.step(300)
    assert run.saved(250)
    assert reported(places)[:3] == (1000, 300, 250)
    assert reported(places).saved_at_s > 0

    again = begin(iterations=1000)

    assert again.first == 250
    assert reported(places)[:3] == (1000, 250, 250)
    assert begin(iterations=100).first == 100


def test_a_checkpoint_counts_as_progress(places):
    run = begin(iterations=1000)
    run.saved(40)
    assert reported(places).done == 40


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"done": -1}', '{"done": "x"}', '{"done": 1e999}']
)
def test_a_corrupt_checkpoint_record_is_ignored(places, text):
    (places / "checkpoints" / "presage-saved.json").write_text(text)
    assert begin(iterations=10).first == 0


def test_a_checkpoint_that_cannot_be_recorded_is_not_reported(places, monkeypatch):
    run = begin(iterations=1000)
    assert run.saved(100)
    monkeypatch.setattr("presage.system.files.atomic_file.os.fsync", _no_space)

    assert not run.saved(200)

    assert reported(places).saved == 100
    assert begin(iterations=1000).first == 100
    assert sorted(path.name for path in (places / "checkpoints").iterdir()) == [progress.SAVED]


def test_an_unwritable_progress_file_does_not_fail_the_job(places, monkeypatch):
    run = begin(iterations=1000)
    monkeypatch.setenv("PRESAGE_PROGRESS", "/no/such/folder/progress.json")
    other = begin(iterations=1000)
    (places / "progress.json").unlink()
    (places / "progress.json").mkdir()

    run.step(1000)
    other.step(1000)


def test_sigusr1_requests_a_checkpoint_until_one_is_saved(places):
    run = begin(iterations=10)
    assert not run.checkpoint_requested

    os.kill(os.getpid(), signal.SIGUSR1)
    assert vars(run)["checkpoint_requested"]
    assert run.checkpoint_folder == places / "checkpoints"

    run.saved(5)
    assert not run.checkpoint_requested


def test_progress_can_begin_in_a_thread(places):
    found = []
    thread = threading.Thread(target=lambda: found.append(begin(iterations=10)))
    thread.start()
    thread.join()
    assert found[0].first == 0


@pytest.mark.parametrize("iterations", [0, -1, 2**60])
def test_a_job_without_iterations_is_an_error(iterations):
    with pytest.raises(ValueError, match="must be >= 1"):
        begin(iterations=iterations)


def test_concurrent_writers_never_leave_a_partial_report(places):
    run = begin(iterations=10**6)
    stop = threading.Event()

    def write() -> None:
        done = 0
        while not stop.is_set():
            done += 1
            run.saved(done)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            reported(places)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_it_imports_only_the_standard_library():
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "from presage import progress\n"
        "progress.begin(iterations=5).step(5)\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, SOURCE]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(found) <= {"presage", "__main__"}


@pytest.mark.parametrize(
    ("name", "noted"),
    [("OutOfMemoryError", True), ("ZeroDivisionError", False), ("KeyboardInterrupt", False)],
)
def test_a_gpu_out_of_memory_error_is_recorded_when_the_job_ends(places, name, noted):
    code = (
        "import sys\n"
        "class OutOfMemoryError(RuntimeError): ...\n"
        "sys.excepthook = lambda kind, value, trace: print('former hook', kind.__name__)\n"
        "from presage import progress\n"
        "progress.begin(iterations=5).step(2)\n"
        f"raise {name}('of what was wanted')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip

    assert ended.returncode != 0
    assert ended.stdout == f"former hook {name}\n"
    assert reported(places).done == 2
    assert reported(places).out_of_memory is noted


@pytest.mark.parametrize("limit", ["", "x", "nan", "-1", "0", "0.5", "inf"])
def test_an_invalid_memory_fraction_is_not_set(places, monkeypatch, limit):
    monkeypatch.setenv("PRESAGE_MEMORY_BYTES", limit)
    monkeypatch.setitem(sys.modules, "torch", None)  # an import would raise
    begin(iterations=1)


def test_torch_gets_its_memory_fraction_of_each_gpu_and_keeps_its_device(places, monkeypatch):
    limits: list[tuple[float, int]] = []
    current = [0]

    class Cuda:
        is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 3)
        current_device = staticmethod(lambda: current[0])

        @staticmethod
        def get_device_properties(device: int) -> object:
            return type("Properties", (), {"total_memory": (40 * GIB, 80 * GIB, 20 * GIB)[device]})

        @staticmethod
        def set_per_process_memory_fraction(part: float, device: int) -> None:
            current[0] = device  # as torch does
            limits.append((part, device))

        @staticmethod
        def set_device(device: int) -> None:
            current[0] = device

    monkeypatch.setenv("PRESAGE_MEMORY_BYTES", str(20 * GIB))
    monkeypatch.setitem(sys.modules, "torch", type("Torch", (), {"cuda": Cuda}))
    begin(iterations=1)
    assert limits == [(0.5, 0), (0.25, 1)]  # all of the third GPU
    assert current == [0]


def test_without_torch_the_memory_fraction_has_no_effect(places, monkeypatch):
    monkeypatch.setenv("PRESAGE_MEMORY_BYTES", str(GIB))
    monkeypatch.setitem(sys.modules, "torch", None)
    begin(iterations=1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(reported=st.dictionaries(st.sampled_from([*progress.Report._fields]), JSON) | JSON)
def test_any_json_is_read_as_no_report_or_a_valid_one(tmp_path_factory, reported):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(reported))
    _is_sound(read_progress(path))


@given(raw=st.binary(max_size=80) | st.just(b"[" * 4000) | st.just(b'{"done": 1' + b"0" * 4000))
def test_any_bytes_are_read_as_no_report_or_a_valid_one(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(raw)
    _is_sound(read_progress(path))


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ('{"iterations": 10, "done": 3, "done_at_s": 1.5}', Report(10, 3, 0, 1.5, 0.0)),
        ('{"iterations": 10, "done": 3.0, "saved": 2, "done_at_s": 1}', Report(10, 3, 2, 1.0, 0.0)),
        (
            '{"iterations": 10, "done": 12, "saved": 11, "done_at_s": 1}',
            Report(10, 10, 10, 1.0, 0.0),
        ),
        ('{"iterations": 10, "done": 3, "saved": 5, "done_at_s": 1}', Report(10, 5, 5, 1.0, 0.0)),
        ('{"iterations": 10, "done": 3}', None),
        ('{"iterations": 10, "done": 3.5, "done_at_s": 1}', None),
        ('{"iterations": 10, "done": true, "done_at_s": 1}', None),
        ('{"iterations": 0, "done": 0, "done_at_s": 1}', None),
        ('{"iterations": 10, "done": -1, "done_at_s": 1}', None),
        ('{"iterations": 10, "done": 3, "done_at_s": NaN}', None),
        ('{"iterations": 1e300, "done": 3, "done_at_s": 1}', None),
        ('{"iterations": 10, "done": 3, "done_at_s": 1, "saved": null}', None),
    ],
)
def test_reports_of_jobs_in_other_languages(tmp_path, text, report):
    (tmp_path / "progress.json").write_text(text)
    assert read_progress(tmp_path / "progress.json") == report


def test_no_report_lies_in_the_future(tmp_path):
    (tmp_path / "progress.json").write_text('{"iterations": 10, "done": 3, "done_at_s": 1e15}')
    found = read_progress(tmp_path / "progress.json")
    assert found is not None
    assert found.done_at_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_sound(report: Report | None) -> None:
    if report is not None:
        assert 0 <= report.saved <= report.done <= report.iterations
        assert 0 <= report.done_at_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
        assert report.saved_at_s >= 0


def _no_space(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_checkpoint_request_at_the_end_of_a_job_is_harmless(places):
    code = (
        "import os, signal\nfrom presage import progress\n"
        "run, job = progress.begin(1), os.getpid()\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        while True: os.kill(job, signal.SIGUSR1)\n"
        "    except ProcessLookupError: os._exit(0)\n"
        "run.step(1)\n"
    )
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, check=False
        )
        assert done.returncode == 0
