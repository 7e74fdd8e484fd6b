"""Time that a submission waits for the bridge in a real Slurm, as slurmctld logs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.schedulers.slurm.site import GPU, Site, slurm_site

from presage.schedulers.slurm.bridge.bridge_server import SOCKET

RELEASE = Path("data/pretrained/release")
WARM_UP, SUBMISSIONS, FAILED_SUBMISSIONS = 20, 500, 40
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Milliseconds that submissions waited.

    Attributes
    ----------
    unanswered : int
        Submissions whose answer changed nothing.
    load : float
        Load average of the machine.
    cpu_ms : float
        Time of a processor that the bridge needs for an answer; 0 if it is not measured.
    """

    case: str
    submissions: int
    unanswered: int
    median_ms: float
    p99_ms: float
    most_ms: float
    load: float
    cpu_ms: float = 0.0


def measure_response_times() -> Iterator[ResponseTimes]:
    """Yield the times with a bridge that answers, is absent, hangs, and gives invalid answers."""
    with (
        tempfile.TemporaryDirectory(prefix="presage-bridge-") as folder,
        slurm_site(Path(folder), patient=False) as site,
    ):
        _ask_at_once(site)
        with _bridge(site) as process:
            _submit(site, WARM_UP)
            before_ms = _cpu_ms(process.pid)
            answers = _measured(site, "answers", SUBMISSIONS)
            yield replace(answers, cpu_ms=(_cpu_ms(process.pid) - before_ms) / SUBMISSIONS)
            process.send_signal(signal.SIGSTOP)
            yield _measured(site, "is stopped (SIGSTOP)", FAILED_SUBMISSIONS)
            process.send_signal(signal.SIGCONT)
        yield _measured(site, "is not there", FAILED_SUBMISSIONS)
        with site.answering(lambda _: b"presage=1\ntime_limit=-5\n\n"):
            yield _measured(site, "gives an invalid answer", FAILED_SUBMISSIONS)


def _ask_at_once(site: Site) -> None:
    """Ask again at once after a failure, so that each failure is measured."""
    script = site.cluster.folder / "job_submit.lua"
    script.write_text(script.read_text().replace("PAUSE_S = 10 ", "PAUSE_S = 0 "))


@contextmanager
def _bridge(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``presage slurm bridge`` with the shipped release."""
    command = [
        sys.executable, "-m", "presage", "slurm", "bridge", "--predictor", str(RELEASE),
        "--device", "a100=a100-80gb", "--state", str(site.state),
    ]  # fmt: skip
    environment = {**os.environ, **site.cluster.environment}
    with subprocess.Popen(command, env=environment) as process:
        until_s = time.monotonic() + _START_S
        while not (site.state / SOCKET).exists():
            if time.monotonic() > until_s or process.poll() is not None:
                raise RuntimeError("the bridge did not start")
            time.sleep(0.1)
        try:
            yield process
        finally:
            process.terminate()


def _measured(site: Site, case: str, count: int) -> ResponseTimes:
    before = len(site.asked_ms())
    notes = _submit(site, count)
    times_ms = site.asked_ms()[before:]
    assert len(times_ms) == count, f"{len(times_ms)} of {count} submissions asked"
    median_ms, p99_ms, most_ms = np.quantile(times_ms, (0.5, 0.99, 1.0))
    return ResponseTimes(
        case, count, notes.count(False), median_ms, p99_ms, most_ms, os.getloadavg()[0]
    )


def _cpu_ms(pid: int) -> float:
    """Return the time of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _submit(site: Site, count: int) -> list[bool]:
    """Submit held jobs; return whether each got a note."""
    ids = [site.submit(GPU, "--time=600", "--hold") for _ in range(count)]
    return [site.note(one) is not None for one in ids]
