"""Program of a job that writes its progress to a ledger shared by all jobs.

    python job.py LEDGER ITERATIONS STEP_S [EVERY] [HOW]

It saves every EVERY iterations (0: only on request). HOW are words: it "fails" once, "breaks" each
time, is "deaf" to signals, is "polite" and exits with 0, or reports that it is "done"; it "forks" a
detached child, or "writes" much output. Each line of the ledger is
``what job attempt pid number``, appended in one write: "start" with the first iteration, "did" and
"saved" with the number of completed iterations, "failed", "end"; "beside" with the pid of another
process of the same job that was alive when this one started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from presage.schedulers.live import job_progress as progress

LEDGER = "TEST_LEDGER"  # environment variable that identifies the processes of a test in /proc


def processes_of(ledger: str, job: str | None = None) -> dict[int, str]:
    """Return the tasks of running processes by process id, of one job or of all."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            said = dict(
                pair.partition(b"=")[::2] for pair in (path / "environ").read_bytes().split(b"\0")
            )
            state = (path / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        task = os.fsdecode(said.get(b"PRESAGE_TASK", b""))
        if said.get(LEDGER.encode()) != os.fsencode(ledger) or state in b"ZX" or not task:
            continue
        if job is None or task.rpartition(".")[0] == job:
            found[int(path.name)] = task
    return found


def main() -> None:
    ledger, iterations, step_s, every, *how = sys.argv[1:]
    opened = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    job, _, attempt = os.environ["PRESAGE_TASK"].rpartition(".")

    def say(what: str, number: int) -> None:
        os.write(opened, f"{what} {job} {attempt} {os.getpid()} {number}\n".encode())

    for pid in processes_of(ledger, job).keys() - {os.getpid()}:
        say("beside", pid)
    if "deaf" in how:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run = progress.begin(int(iterations))
    if "deaf" in how:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if "polite" in how or "done" in how:

        def leave(*_: object) -> None:
            if "done" in how:
                run.step(run.iterations)
                say("end", run.iterations)
            os._exit(0)

        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, leave)
    if "forks" in how and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    say("start", run.first)
    again = f"failed {job} " in Path(ledger).read_text()
    if "breaks" in how or ("fails" in how and not again):
        time.sleep(0.3)
        say("failed", 0)
        sys.exit(3)
    for done in range(run.first + 1, run.iterations + 1):
        time.sleep(float(step_s))
        if "writes" in how:
            os.write(1, b"x" * 1024 * 1024)
        run.step(done)
        say("did", done)
        if run.checkpoint_requested or (int(every) and done % int(every) == 0):
            run.saved(done)
            say("saved", done)
    say("end", run.iterations)


if __name__ == "__main__":
    main()
