"""Processes of a server: started on a core, what they use, and their end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
KIB, MIB = 1024, 1024 * 1024
_SESSION, _USER, _SYSTEM = 3, 11, 12  # fields of /proc/PID/stat behind the command's name


class Processes:
    """Command in a session of its own, with all processes that it starts.

    Parameters
    ----------
    output : Path
        Where its standard output and error go.
    """

    # Processor time of processes that outlived their parents, which no parent counts.
    orphans_cpu_s = 0.0

    def __init__(
        self, command: Sequence[str], *, cores: Collection[int], env: dict[str, str], cwd: Path,
        output: Path,
    ) -> None:  # fmt: skip
        self.output = output
        with output.open("wb") as out:
            self.started_s = time.perf_counter()
            self._process = subprocess.Popen(
                [*on(cores), *command],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Return the ids of all running processes."""
        session = self._process.pid
        return [int(entry.name) for entry, stat in _stats() if int(stat[_SESSION]) == session]

    def check_running(self) -> None:
        code = self._process.poll()
        if code is not None:
            tail = self.output.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{self._process.args!r} ended with {code}\n{tail}")

    def pin(self, cores: Collection[int]) -> None:
        """Restrict every thread to these cores."""
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores)

    def cpu_s(self) -> float:
        """Return the processor seconds of all processes so far."""
        session = self._process.pid
        ticks = [
            int(stat[_USER]) + int(stat[_SYSTEM])
            for _, stat in _stats()
            if int(stat[_SESSION]) == session
        ]
        return sum(ticks) / TICKS_PER_S

    def pss_mib(self) -> float:
        """Return the memory of all processes; shared pages count in parts."""
        total = 0
        for pid in self.pids():
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total * KIB / MIB

    def stop(self) -> None:
        """Terminate the processes, and kill them after some seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        Processes.orphans_cpu_s += self.cpu_s()
        for pid in self.pids():  # what it left behind
            os.kill(pid, signal.SIGKILL)


def busy_s() -> float:
    """Return the seconds that all programs of this machine have kept cores busy."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _waiting, *interrupts = map(int, first[:8])
    return (user + nice + system + sum(interrupts)) / TICKS_PER_S


def own_s() -> float:
    """Return the seconds of this program and of its ended child processes."""
    used = sum(sum(resource.getrusage(scope)[:2])
               for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    return used + Processes.orphans_cpu_s


def on(cores: Collection[int]) -> list[str]:
    """Return the command prefix that restricts a command to these cores; it keeps its process."""
    return ["taskset", "-c", ",".join(map(str, sorted(cores)))]


def _stats() -> Iterator[tuple[Path, list[str]]]:
    """Return the fields of /proc/PID/stat behind the command's name, of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
            yield entry, stat.rpartition(")")[2].split()
