"""A job that writes to a ledger what becomes of it, with times of its own. Run as a program.

    python job.py LEDGER ITERATIONS STEP_S EVERY [HOW...]

Each line of the ledger is ``at what job attempt pid number``, appended in one write: "begin" with
the first iteration, "tick" and "saved" with how many are done, "failed", "end"; "beside" with the
process of the same job that was alive when this one began. ``at`` is in nanoseconds of
``CLOCK_BOOTTIME``. EVERY: iterations between checkpoints, 0 for none but those asked for. HOW:
"fails" in its first attempt, "breaks" in each; "overflows", that is runs out of memory, in its
first; is "deaf" to SIGTERM; "forks" a child with a session of its own, which writes ticks as well.
SIGUSR2 makes it run out of memory at any time.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from presage.schedulers.live import job_progress as progress
from tests.schedulers.live.job import processes_of

_CHILD_S, _CHILD_TICK_S = 120.0, 0.1


class TestOutOfMemoryError(Exception):
    """By the end of its name ``progress`` knows that the device's memory was exceeded."""


def overflow(*_: object) -> None:
    """Run out of memory."""
    raise TestOutOfMemoryError


def main() -> None:
    signal.signal(signal.SIGUSR2, overflow)
    ledger, iterations, step_s, every, *how = sys.argv[1:]
    opened = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    job, _, attempt = os.environ["PRESAGE_TASK"].rpartition(".")

    def write(what: str, number: int) -> None:
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(opened, f"{at} {what} {job} {attempt} {os.getpid()} {number}\n".encode())

    run = progress.begin(int(iterations))
    write("begin", run.first)
    for pid in processes_of(ledger, job).keys() - {os.getpid()}:
        write("beside", pid)
    if "deaf" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "forks" in how and os.fork() == 0:
        _child(write)
    first = int(attempt) == 1
    if "breaks" in how or ("fails" in how and first):
        time.sleep(0.2)
        write("failed", 0)
        sys.exit(3)
    if "overflows" in how and first:
        overflow()
    for done in range(run.first + 1, run.iterations + 1):
        time.sleep(float(step_s))
        run.step(done)
        write("tick", done)
        due = run.checkpoint_requested or (int(every) and done % int(every) == 0)
        if due and run.saved(done):
            write("saved", done)
    write("end", run.iterations)


def _child(write: object) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    until_s = time.monotonic() + _CHILD_S
    while time.monotonic() < until_s:
        write("tick", 0)  # type: ignore[operator]
        time.sleep(_CHILD_TICK_S)
    os._exit(0)


if __name__ == "__main__":
    main()
