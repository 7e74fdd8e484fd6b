"""SM activity from NVIDIA's Data Center GPU Manager, with its command ``dcgmi dmon``."""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import weakref
from collections.abc import Iterable
from functools import cache

from presage.pipelines.profiling.sampling.sm_counters import SmReading

log = logging.getLogger(__name__)

SM_ACTIVE, SM_OCCUPANCY = 1002, 1003  # DCGM's numbers of the fields
PERIOD_MS = 100  # DCGM's shortest period
MOST_LINES = 1200  # two minutes: limits the lifetime if the profiler is killed
PATIENCE_S = 2.0


def dcgm_is_installed() -> bool:
    """Return whether the command exists; a missing host engine shows only when it runs."""
    return shutil.which("dcgmi") is not None


class Dcgm:
    """``dcgmi dmon`` for the duration of a window; empty readings where it cannot count."""

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:  # noqa: D102 - as in SmCounters
        fields = f"{SM_ACTIVE},{SM_OCCUPANCY}"
        flags = ["-e", fields, "-d", str(PERIOD_MS), "-c", str(MOST_LINES), "-i", str(self._gpu)]
        try:
            self.process = subprocess.Popen(
                ["dcgmi", "dmon", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            warn(f"dcgmi failed to start ({error.strerror})")
        else:
            # Stop the process if the window is aborted.
            self._guard = weakref.finalize(self, self.process.kill)

    def stop(self) -> SmReading:  # noqa: D102
        if self.process is None:
            return SmReading()
        process, self.process = self.process, None
        self._guard.detach()
        output = _ended(process)
        reading = parse(output.splitlines())
        if reading.activity is None:
            warn(output.strip().replace("\n", " ")[-200:] or "dcgmi printed nothing")
        return reading


def _ended(process: subprocess.Popen[str]) -> str:
    """Return the complete output; an interrupted process still flushes its pipe buffer."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def parse(lines: Iterable[str]) -> SmReading:
    """Return the means of lines such as "GPU 0  0.912  0.441", without header and "N/A"."""
    rows = []
    for line in lines:
        words = line.split()
        if len(words) >= 4 and words[0] == "GPU":
            rows.append(tuple(_number(word) for word in words[-2:]))
    return SmReading(*(_mean(row[place] for row in rows) for place in range(2)))


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None  # DCGM encodes a missing value as a very large number


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@cache  # once per process, not once per window
def warn(what: str) -> None:
    """Log why DCGM provides no SM activity."""
    log.warning("DCGM provides no SM activity: %s; check that nv-hostengine runs", what)
