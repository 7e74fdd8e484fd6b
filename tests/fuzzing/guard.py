"""A process of its own for a reader, so that whatever an input does to it is seen and outlived."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from presage.features.graph.graph_file import MAX_NATIVE_BYTES
from tests.fuzzing.reader import Sample
from tests.fuzzing.readers import READERS

MOST_S = 5.0  # that one input may take
MOST_BYTES = 512 * 1024**2  # that one may make the process grow by; ONNX's child has its own limit
NATIVE_PROCESS = "from_onnx/native_process.py"  # in the command line of ONNX's child
_ADDRESS_SPACE_BYTES = 4 * 1024**3  # beyond what the process has when it begins
_START_S = 120.0
_MOST_TEXT = 4000  # of an error: a longer one repeats the content of a file


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an input.

    Attributes
    ----------
    fault : str
        "" where it was read or refused as it should be; else what is wrong and where, in words that
        are the same for all inputs that find this fault.
    said : str
        The error, "" where there was none.
    """

    fault: str
    said: str
    seconds: float

    @property
    def was_read(self) -> bool:
        """Whether the input was taken for right."""
        return not self.fault and not self.said


class Guard:
    """Gives inputs to a reader in another process, which it replaces where one was its end."""

    def __init__(self, name: str, *, most_s: float = MOST_S) -> None:
        self._name, self._most_s = name, most_s
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._end()

    def run(self, sample: Sample) -> Outcome:
        """What becomes of a sample."""
        begin_s = time.monotonic()
        try:
            self._connection.send(sample)
            if not self._connection.poll(self._most_s):
                return self._replace(f"hang: more than {self._most_s:g} s", begin_s)
            outcome: Outcome = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return self._replace(f"crash: exit code {self._process.exitcode}", begin_s)
        if outcome.fault.startswith("memory"):
            self._end()
            self._start()
        return outcome

    def _replace(self, fault: str, begin_s: float) -> Outcome:
        self._end()
        self._start()
        return Outcome(fault, fault, time.monotonic() - begin_s)

    def _start(self) -> None:
        # Spawned: threads of native libraries do not outlive a fork.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(self._name, theirs), daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(_START_S):
            raise RuntimeError(f"{self._name}: the reader's process does not start")
        if not self._connection.recv():
            warnings.warn(
                "/proc/self/clear_refs cannot be written: what an input makes a process grow by is "
                f"not measured, and only {_ADDRESS_SPACE_BYTES >> 30} GiB are a fault",
                stacklevel=2,
            )

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _work(name: str, connection: Connection) -> None:
    """Read what comes over a connection, until it is closed."""
    # Native libraries write of every broken file.
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reader = READERS[name]
    with TemporaryDirectory() as folder:
        # What is imported or kept at the first input is no input's doing.
        for sample in reader.seeds():
            run_one(name, sample, Path(folder))
        limit = _address_space_bytes() + _ADDRESS_SPACE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        connection.send(bool(begin_peaks()))  # whether that is measured here
        while True:
            try:
                sample = connection.recv()
            except EOFError:
                return
            connection.send(run_one(name, sample, Path(folder)))


def run_one(name: str, sample: Sample, folder: Path) -> Outcome:
    reader = READERS[name]
    path = folder / f"sample{sample.suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sample.content)
    before = begin_peaks()
    begin_s = time.monotonic()
    fault = said = ""
    try:
        reader.read(path)
    except reader.refusals as error:
        said = str(error)
        if "\n" in said or len(said) > _MOST_TEXT:
            fault = f"text: not one short line, {_where(error)}"
    except MemoryError as error:
        fault = said = f"memory: MemoryError, {_where(error)}"
    except BaseException as error:
        fault = f"error: {type(error).__name__}, {_where(error)}"
        said = "".join(traceback.format_exception_only(error)).strip()[:_MOST_TEXT]
    seconds = time.monotonic() - begin_s
    return Outcome(fault or _memory_fault(before), said, seconds)


def _where(error: BaseException) -> str:
    """The innermost place of ours that an error came through, without numbers of lines."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if re.search(r"/(features|models|serving)/", f.filename)]
    if not ours:
        return "outside of Presage"
    last = ours[-1]
    return f"{Path(last.filename).parent.name}/{Path(last.filename).name} {last.name}"


def begin_peaks() -> dict[int, int]:
    """Reset the peaks of this process and of ONNX's child; return them in bytes, by process id.

    Empty if the system does not permit a reset of peaks: a peak only rises, so that it says
    nothing after one large input.
    """
    try:
        for process in _processes():
            Path(f"/proc/{process}/clear_refs").write_text("5")  # proc(5): the peak is what is now
    except OSError:
        return {}
    return _peaks_bytes()


def _memory_fault(before: dict[int, int]) -> str:
    """Return a message if this process or ONNX's child exceeds its memory limit; else "".

    A child that was ended by its input is not counted.
    """
    for process, peak in (_peaks_bytes() if before else {}).items():
        most = MOST_BYTES if process == os.getpid() else MAX_NATIVE_BYTES
        if peak - before.get(process, 0) > most:
            return f"memory: more than {most >> 20} MiB"
    return ""


def _peaks_bytes() -> dict[int, int]:
    peaks = {}
    for process in _processes():
        told = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        if told:  # else it has ended
            peaks[process] = int(told[1]) * 1024
    return peaks


def _processes() -> list[int]:
    """Return this process and its child that runs ONNX's code."""
    found = [os.getpid()]
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread or a child has ended
            for child in (task / "children").read_text().split():
                if NATIVE_PROCESS in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(int(child))
    return found


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
