"""Progress reports of a running job: completed iterations and saved checkpoints.

    run = progress.begin(iterations=1000)
    if run.first:
        restore(run.checkpoint_folder)
    for done in range(run.first, 1000):
        train_one_step()
        run.step(done + 1)
        if run.checkpoint_requested:
            save(run.checkpoint_folder)  # under another name, fsynced, then renamed
            run.saved(done + 1)

Outside Presage these calls do nothing: ``first`` is 0 and ``checkpoint_folder`` is None.

A job in another language keeps its checkpoints, and a record of their iterations, in the folder
``PRESAGE_CHECKPOINT``, and replaces the file ``PRESAGE_PROGRESS`` atomically: it writes another
file in the same folder and renames it. The file contains one JSON object, such as
``{"iterations": 1000, "done": 250, "saved": 200, "done_at_s": 5123.4, "saved_at_s": 5101.9}``:

- ``iterations``, ``done``, ``saved``: of the whole job, not of this attempt; ``saved`` is the
  number in the checkpoint on disk, 0 or left out if there is none;
- ``done_at_s``, ``saved_at_s``: when ``done`` was reached and when that checkpoint was complete, in
  seconds of ``CLOCK_BOOTTIME`` (the first number in ``/proc/uptime``). ``saved_at_s`` may be left
  out; then only a larger ``saved`` indicates a new checkpoint;
- ``out_of_memory``: true once the job fails because its device is out of memory. In Python it is
  set for an uncaught ``OutOfMemoryError``, as raised by torch.

``SIGUSR1`` requests a checkpoint from the job's first process; Presage ends the job once the
checkpoint is reported.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from operator import index
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

from presage.system.files.atomic_file import replace_text
from presage.system.files.regular_file import read_small

FILE, FOLDER, MEMORY = "PRESAGE_PROGRESS", "PRESAGE_CHECKPOINT", "PRESAGE_MEMORY_BYTES"
SAVED = "presage-saved.json"  # in the checkpoint folder: iterations saved by earlier attempts

_EVERY_S = 0.5
_MODE = 0o666  # the umask of the job restricts the readers of its reports
_OUT_OF_MEMORY = "OutOfMemoryError"  # suffix of the class name in torch and others
_MAX = 2**53  # larger integers are not exact in every JSON reader
_MAX_BYTES = 4096
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # scripts also run on other systems


class Report(NamedTuple):
    """Content of a progress file: 0 <= saved <= done <= iterations; times by ``CLOCK_BOOTTIME``."""

    iterations: int
    done: int
    saved: int
    done_at_s: float
    saved_at_s: float  # 0 if the job does not report it
    out_of_memory: bool = False  # the job failed for lack of device memory


class Run:
    """Attempt of a job, as seen by the job itself; returned by :func:`begin`.

    Attributes
    ----------
    iterations : int
        Number of iterations of the whole job.
    first : int
        Iterations in the checkpoint of earlier attempts; 0 if there is none.
    checkpoint_folder : Path or None
        Folder of the job's checkpoints, shared by its attempts.
    checkpoint_requested : bool
        Whether a checkpoint is requested; reset by :meth:`saved`.
    """

    def __init__(self, iterations: int, file: Path | None, folder: Path | None) -> None:
        self.iterations = iterations
        self.checkpoint_folder = folder
        self.checkpoint_requested = False
        self.first = 0 if folder is None else min(iterations, _saved_before(folder))
        self._file = file
        self._done = self._saved = self.first
        self._saved_at_s = 0.0
        self._next_s = -math.inf  # by the monotonic clock
        self._written = -1
        self._out_of_memory = False

    def step(self, done: int) -> None:
        """Report the completed iterations of the whole job; written at most twice a second.

        The first and the last iteration are written at once. Errors of the disk are ignored.
        """
        now_s = time.monotonic()
        if now_s < self._next_s and (done < self.iterations or done == self._written):
            return
        self._next_s = now_s + _EVERY_S
        self._done = index(done)
        self._write()

    def saved(self, done: int) -> bool:
        """Report a complete checkpoint with a number of iterations; durable on return.

        Returns
        -------
        bool
            Whether the report was written. If not, as on a full disk, the next attempt's ``first``
            is that of the previous checkpoint.
        """
        self.checkpoint_requested = False
        done = index(done)
        folder = self.checkpoint_folder
        if folder is not None:
            try:
                replace_text(
                    folder / SAVED, json.dumps({"done": done}), durable=True, mode=_MODE,
                    displace_folder=True,
                )  # fmt: skip
            except OSError:
                return False
        self._saved, self._saved_at_s = done, time.clock_gettime(_CLOCK)
        self._done = max(self._done, done)
        self._write()
        return True

    def _write(self) -> None:
        if self._file is None:
            return
        report = {
            "iterations": self.iterations,
            "done": self._done,
            "saved": self._saved,
            "done_at_s": time.clock_gettime(_CLOCK),
            "saved_at_s": self._saved_at_s,
            "out_of_memory": self._out_of_memory,
        }
        with suppress(OSError):  # full disk: a later report may succeed
            replace_text(self._file, json.dumps(report), mode=_MODE, displace_folder=True)
            self._written = self._done

    def _request_checkpoint(self, _signal: int, _frame: FrameType | None) -> None:
        self.checkpoint_requested = True

    def _watch_memory(self) -> None:
        """Report an uncaught exception that means that the device is out of memory."""
        previous = sys.excepthook

        def hook(
            kind: type[BaseException], value: BaseException, trace: TracebackType | None
        ) -> None:
            if kind.__name__.endswith(_OUT_OF_MEMORY):
                self._out_of_memory = True
                with suppress(Exception):
                    self._write()
            previous(kind, value, trace)

        sys.excepthook = hook


def begin(iterations: int) -> Run:
    """Report the start of the job; call once, at its start, in the main thread.

    Sets a handler for ``SIGUSR1``, torch's memory limit on each GPU if Presage limits it, and
    ``sys.excepthook``, which then calls the previous hook.

    Raises
    ------
    ValueError
        ``iterations`` is less than 1.
    """
    if not 1 <= iterations <= _MAX:
        raise ValueError(
            f"iterations={iterations}, must be >= 1; count the whole job, including the iterations "
            "of earlier attempts"
        )
    file, folder = os.environ.get(FILE), os.environ.get(FOLDER)
    run = Run(index(iterations), Path(file) if file else None, Path(folder) if folder else None)
    if file:
        with suppress(ValueError):  # not the main thread: checkpoint requests are not possible
            signal.signal(signal.SIGUSR1, run._request_checkpoint)
            # Python removes its handlers before it ends: the signal would kill a job that is done,
            # and the job would be run again.
            atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        run._watch_memory()
        run._write()
    _limit_memory(os.environ.get(MEMORY, ""))
    return run


def read_progress(path: Path) -> Report | None:
    """Read the progress of a job; None if there is no such file, or its content is not valid."""
    row = _read(path)
    try:
        iterations, done = _count(row["iterations"]), _count(row["done"])
        saved = _count(row.get("saved", 0))
        done_at_s = _second(row["done_at_s"])
        saved_at_s = _second(row.get("saved_at_s", 0.0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if iterations < 1:
        return None
    # Some jobs overshoot; saved iterations are done.
    done = min(iterations, max(done, saved))
    full = row.get("out_of_memory") is True
    return Report(iterations, done, min(done, saved), done_at_s, saved_at_s, full)


def _read(path: Path) -> dict[str, object]:
    """Return the JSON object in a small file; empty for anything else."""
    try:
        row = json.loads(read_small(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise TypeError
    if not 0 <= value <= _MAX:
        raise ValueError
    return int(value)


def _second(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return min(float(value), time.clock_gettime(_CLOCK))  # no report is from the future


def _saved_before(folder: Path) -> int:
    try:
        return _count(_read(folder / SAVED)["done"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0


def _limit_memory(limit: str) -> None:
    """Limit torch's memory on each GPU, and restore the current GPU, which torch changes."""
    try:
        most_bytes = int(limit)
        if most_bytes <= 0:
            return
        import torch
    except (ValueError, ImportError):
        return
    if not torch.cuda.is_available():
        return
    current = torch.cuda.current_device()
    for device in range(torch.cuda.device_count()):
        part = most_bytes / torch.cuda.get_device_properties(device).total_memory
        if part < 1:
            torch.cuda.set_per_process_memory_fraction(part, device)
    torch.cuda.set_device(current)
