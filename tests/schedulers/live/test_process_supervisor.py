"""Supervision of real child processes that fail, are killed, write output or keep running."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.process_supervisor import (
    ProcessSpec,
    RestartPolicy,
    Supervisor,
    supervising,
)
from tests.support.waiting import wait_until

WITHIN_S = 60.0
QUICK = RestartPolicy(first_delay_s=0.05, max_delay_s=0.2, stable_s=WITHIN_S)
SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def python(folder: Path, name: str, code: str) -> ProcessSpec:
    """Return the spec of a child that runs a line of Python."""
    return ProcessSpec(name, [sys.executable, "-c", code], folder / f"{name}.log")


def run_until(supervisor: Supervisor, holds: Callable[[], object]) -> None:
    """Run a supervisor until something is true, then stop it."""

    def watch() -> None:
        try:
            wait_until(holds, WITHIN_S)
        finally:
            supervisor.stopping = True

    watching = threading.Thread(target=watch)
    watching.start()
    supervisor.run()
    watching.join()
    assert holds()


def running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_delays_double_with_each_failure_up_to_the_longest():
    policy = RestartPolicy(first_delay_s=1.0, max_delay_s=60.0)
    delays = [policy.delay_s(failures) for failures in (1, 2, 3, 6, 7, 10_000)]
    assert delays == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


def test_a_failing_process_is_restarted_with_growing_delays_and_others_continue(folder):
    said: list[str] = []
    with supervising(said.append, QUICK) as supervisor:
        supervisor.start(python(folder, "good", SLEEPS))
        supervisor.start(python(folder, "bad", "exit('error: no such option')"))
        run_until(supervisor, lambda: len(said) >= 4)

    for line, delay, times in zip(said, ("0.05", "0.1", "0.2", "0.2"), (1, 2, 3, 4), strict=False):
        row = f", {times} failures in a row" if times > 1 else ""
        assert line == (f"bad ended with 1: error: no such option; restarting in {delay} s{row}")


def test_a_process_that_was_stable_is_restarted_after_the_first_delay(folder):
    said: list[str] = []
    policy = RestartPolicy(first_delay_s=0.05, max_delay_s=100.0, stable_s=0.0)
    with supervising(said.append, policy) as supervisor:
        supervisor.start(python(folder, "one", "exit(1)"))
        run_until(supervisor, lambda: len(said) >= 4)

    assert set(said) == {"one ended with 1: it wrote nothing; restarting in 0.05 s"}


def test_a_killed_process_is_reported_with_its_signal_and_restarted(folder):
    said: list[str] = []
    with supervising(said.append, QUICK) as supervisor:
        supervisor.start(python(folder, "one", "import os; os.kill(os.getpid(), 9)"))
        run_until(supervisor, lambda: said)

    assert said[0] == "one was ended by SIGKILL; restarting in 0.05 s"


def test_the_reported_error_is_the_last_error_line_of_the_current_start(folder):
    spec = python(
        folder, "one", 'print(\'error: first\\nerror: the cause\\n{"event": "later"}\'); exit(1)'
    )
    spec.log.write_text("error: of an earlier start\n" * 10_000)
    with supervising(print) as supervisor, pytest.raises(ServiceError) as refused:
        supervisor.start_until(spec, "ready")
    assert str(refused.value) == "one ended with 1: error: the cause"

    traceback = python(folder, "one", "raise KeyError('what')")
    with supervising(print) as supervisor, pytest.raises(ServiceError) as refused:
        supervisor.start_until(traceback, "ready")
    assert str(refused.value) == "one ended with 1: KeyError: 'what'"


def test_output_of_an_earlier_start_does_not_make_a_process_ready(folder):
    spec = python(folder, "one", "exit('error: the port is in use')")
    spec.log.write_text("ready\n")
    with supervising(print) as supervisor, pytest.raises(ServiceError, match="the port is in use"):
        supervisor.start_until(spec, "ready")


def test_a_missing_command_is_reported_and_retried(folder):
    said: list[str] = []
    with supervising(said.append, QUICK) as supervisor:
        supervisor.start(ProcessSpec("one", [folder / "nothing"], folder / "one.log"))
        run_until(supervisor, lambda: len(said) >= 2)

    assert said[0].startswith("one could not be started: [Errno 2] No such file or directory")


def test_logs_stay_bounded_and_keep_their_end(folder):
    most_bytes, said = 100_000, list[str]()
    spec = python(
        folder, "one", "for i in range(100_000): print(f'{i:0100}')\nexit('error: the end')"
    )
    with supervising(said.append, RestartPolicy(WITHIN_S), most_bytes) as supervisor:
        supervisor.start(spec)
        run_until(supervisor, lambda: said and spec.log.stat().st_size <= most_bytes)

    assert said == ["one ended with 1: error: the end; restarting in 60 s"]
    kept = [path for path in folder.iterdir() if path.name.startswith("one.log")]
    assert sum(path.stat().st_size for path in kept) <= 2 * most_bytes + 100
    assert b"error: the end" in b"".join(path.read_bytes() for path in kept)
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_even_during_a_restart_delay(folder, number):
    reported = threading.Event()
    handler = signal.getsignal(number)
    with supervising(lambda _: reported.set(), RestartPolicy(first_delay_s=WITHIN_S)) as supervisor:
        supervisor.start_until(python(folder, "good", SLEEPS), "ready")
        supervisor.start(python(folder, "bad", "exit(1)"))

        def signal_when_due() -> None:
            reported.wait(WITHIN_S)
            os.kill(os.getpid(), number)

        threading.Thread(target=signal_when_due).start()
        supervisor.run()
        pids = [child.process.pid for child in supervisor.children if child.process]
    assert reported.is_set()
    assert not any(map(running, pids))
    assert signal.getsignal(number) is handler


def test_a_process_that_ignores_sigterm_is_killed(folder, monkeypatch):
    monkeypatch.setattr("presage.schedulers.live.process_supervisor.STOP_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with supervising(print) as supervisor:
        assert supervisor.start_until(python(folder, "one", deaf + SLEEPS), "ready")
        (child,) = supervisor.children
        assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
