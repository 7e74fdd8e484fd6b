"""What a job says of itself while it runs: how far it is, and what of it is on disk.

    run = progress.begin(iterations=1000)
    if run.first:
        restore(run.checkpoint_folder)
    for done in range(run.first, 1000):
        train_one_step()
        run.step(done + 1)
        if run.checkpoint_wanted:
            save(run.checkpoint_folder)  # under another name, fsynced, then renamed
            run.saved(done + 1)

Outside Presage all of it does nothing: ``first`` is 0 and ``checkpoint_folder`` None.

A job in any other language keeps its checkpoints, and how far they go, in the folder that
``PRESAGE_CHECKPOINT`` names, and writes the file that ``PRESAGE_PROGRESS`` names, whole: under
another name in the same folder, which it then renames. It is one JSON object, such as
``{"iterations": 1000, "done": 250, "saved": 200, "at": 5123.4, "saved_at": 5101.9}``:

- ``iterations``, ``done``, ``saved``: of the whole job, not of this attempt; ``saved`` is how many
  are in the checkpoint on disk, 0 or left out while there is none;
- ``at``, ``saved_at``: when it was so, when that checkpoint was complete, in seconds of
  ``CLOCK_BOOTTIME`` (the first number in ``/proc/uptime``). ``saved_at`` may be left out; then
  only a larger ``saved`` says that there is a new checkpoint;
- ``out_of_memory``: true once the job fails because its device has no more memory. From Python it
  is noted when an exception that nobody caught is an ``OutOfMemoryError``, as torch has it.

``SIGUSR1`` asks the job's first process for a checkpoint; Presage ends it once that is reported.
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

from presage.system.atomic_file import replace_text
from presage.system.regular_file import read_small

FILE, FOLDER, MEMORY = "PRESAGE_PROGRESS", "PRESAGE_CHECKPOINT", "PRESAGE_MEMORY_BYTES"
SAVED = "presage-saved.json"  # in the checkpoint folder: what attempts before have saved

_EVERY_S = 0.5
_MODE = 0o666  # the umask of the job decides who reads its reports
_OUT_OF_MEMORY = "OutOfMemoryError"  # how torch's and others' class names end
_MOST = 2**53  # beyond it not every JSON reader tells whole numbers apart
_MOST_BYTES = 4096
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # a script runs anywhere


class Report(NamedTuple):
    """What a progress file says: 0 <= saved <= done <= iterations; times by ``CLOCK_BOOTTIME``."""

    iterations: int
    done: int
    saved: int
    at_s: float
    saved_at_s: float  # 0 where the job does not say
    out_of_memory: bool = False  # of its device, when it failed


class Run:
    """An attempt at a job, by the job itself; from :func:`begin`.

    Attributes
    ----------
    iterations : int
        That the whole job is to do.
    first : int
        Iterations in the checkpoint that earlier attempts have left; 0 if there is none.
    checkpoint_folder : Path or None
        For the job's checkpoints, kept from attempt to attempt.
    checkpoint_wanted : bool
        Whether somebody waits for a checkpoint; until :meth:`saved`.
    """

    def __init__(self, iterations: int, file: Path | None, folder: Path | None) -> None:
        self.iterations = iterations
        self.checkpoint_folder = folder
        self.checkpoint_wanted = False
        self.first = 0 if folder is None else min(iterations, _saved_before(folder))
        self._file = file
        self._done = self._saved = self.first
        self._saved_at_s = 0.0
        self._next_s = -math.inf  # by the monotonic clock
        self._written = -1
        self._out_of_memory = False

    def step(self, done: int) -> None:
        """So many iterations of the whole job are done; written twice a second at most.

        The first and the last one are written at once. No fault of the disk is the job's.
        """
        now_s = time.monotonic()
        if now_s < self._next_s and (done < self.iterations or done == self._written):
            return
        self._next_s = now_s + _EVERY_S
        self._done = index(done)
        self._write()

    def saved(self, done: int) -> bool:
        """The job's state with so many iterations done is on disk; durable on return.

        Returns
        -------
        bool
            Whether that could be noted down. If not, as on a full disk, the next attempt's
            ``first`` is that of the checkpoint before.
        """
        self.checkpoint_wanted = False
        done = index(done)
        folder = self.checkpoint_folder
        if folder is not None:
            try:
                replace_text(folder / SAVED, json.dumps({"done": done}), durable=True, mode=_MODE)
            except OSError:
                return False
        self._saved, self._saved_at_s = done, time.clock_gettime(_CLOCK)
        self._done = max(self._done, done)
        self._write()
        return True

    def _write(self) -> None:
        if self._file is None:
            return
        said = {
            "iterations": self.iterations,
            "done": self._done,
            "saved": self._saved,
            "at": time.clock_gettime(_CLOCK),
            "saved_at": self._saved_at_s,
            "out_of_memory": self._out_of_memory,
        }
        with suppress(OSError):  # of a full disk: the next one may find room
            replace_text(self._file, json.dumps(said), mode=_MODE)
            self._written = self._done

    def _want_checkpoint(self, _signal: int, _frame: FrameType | None) -> None:
        self.checkpoint_wanted = True

    def _watch_memory(self) -> None:
        """Note an exception that nobody catches, if it says that the device's memory is full."""
        before = sys.excepthook

        def hook(
            kind: type[BaseException], value: BaseException, trace: TracebackType | None
        ) -> None:
            if kind.__name__.endswith(_OUT_OF_MEMORY):
                self._out_of_memory = True
                with suppress(Exception):
                    self._write()
            before(kind, value, trace)

        sys.excepthook = hook


def begin(iterations: int) -> Run:
    """Say that the job runs; once, at its start, in its main thread.

    Sets a handler for ``SIGUSR1`` and the most that torch may take of each GPU's memory, where
    Presage says so; and ``sys.excepthook``, which then calls the one before.

    Raises
    ------
    ValueError
        No iterations.
    """
    if not 1 <= iterations <= _MOST:
        raise ValueError(
            f"iterations={iterations}, must be >= 1: all that the job is to do, also those that "
            "earlier attempts have done"
        )
    file, folder = os.environ.get(FILE), os.environ.get(FOLDER)
    run = Run(index(iterations), Path(file) if file else None, Path(folder) if folder else None)
    if file:
        with suppress(ValueError):  # not the main thread: then there is no checkpoint when asked
            signal.signal(signal.SIGUSR1, run._want_checkpoint)
            # Python takes its handlers away before it ends: the signal would kill a job that is
            # done, and whoever asked would have it run again.
            atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)
        run._watch_memory()
        run._write()
    _limit_memory(os.environ.get(MEMORY, ""))
    return run


def read_progress(path: Path) -> Report | None:
    """What a job reports; None where there is no such file, or nothing that can be true."""
    said = _read(path)
    try:
        iterations, done = _count(said["iterations"]), _count(said["done"])
        saved = _count(said.get("saved", 0))
        at_s, saved_at_s = _second(said["at"]), _second(said.get("saved_at", 0.0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if iterations < 1:
        return None
    # Jobs do overshoot; what is saved was done.
    done = min(iterations, max(done, saved))
    full = said.get("out_of_memory") is True
    return Report(iterations, done, min(done, saved), at_s, saved_at_s, full)


def _read(path: Path) -> dict[str, object]:
    """The JSON object in a small file; empty for anything else."""
    try:
        said = json.loads(read_small(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise TypeError
    if not 0 <= value <= _MOST:
        raise ValueError
    return int(value)


def _second(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return min(float(value), time.clock_gettime(_CLOCK))  # nothing has been after now


def _saved_before(folder: Path) -> int:
    try:
        return _count(_read(folder / SAVED)["done"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0


def _limit_memory(limit: str) -> None:
    """Of each GPU; the one that is current stays so, though torch makes another one current."""
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
