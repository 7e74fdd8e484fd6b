"""A history: what clients asked and were answered, what jobs wrote, and which faults were injected.

One JSON object a line, in a file. The checker reads nothing else.

============  ================================================================================
``kind``      meaning
============  ================================================================================
meta          what the run was: seed, lease, grace, capabilities
invoke        a client process begins an operation
ok            the operation completed; ``value`` is its result
fail          the controller refused it: it has had no effect; ``value`` says why
unknown       the client cannot know whether it had an effect
event         a watcher received an event of the journal
ledger        a line that a job's process wrote, appended after the run
fault, heal   the nemesis injected a fault, or took it back
note          a component ended by itself, or the harness has something to say
final         what is left over after the run
============  ================================================================================

``at`` is in nanoseconds of ``CLOCK_BOOTTIME``, the same clock for clients, jobs and the nemesis.
``op`` joins an invocation with its completion.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One line of a history."""

    at: int
    kind: str
    process: str
    what: str
    value: Any = None
    op: int | None = None


def now_ns() -> int:
    """Nanoseconds since the machine was started; no process can set this clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Recorder:
    """Appends entries to a file; any thread may call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._ops = 0

    def write(
        self, kind: str, process: str, what: str, value: Any = None, op: int | None = None
    ) -> None:
        """Append an entry with the present time."""
        with self._lock:
            self._append(Entry(now_ns(), kind, process, what, value, op))

    def invoke(self, process: str, what: str, value: Any) -> int:
        """Append an invocation; the number of the operation."""
        with self._lock:
            self._ops += 1
            self._append(Entry(now_ns(), "invoke", process, what, value, self._ops))
            return self._ops

    def append(self, entries: Iterable[Entry]) -> None:
        """Append entries that have times of their own."""
        with self._lock:
            for entry in entries:
                self._append(entry)

    def close(self) -> None:
        """Flush and close the file."""
        with self._lock:
            self._file.close()

    def _append(self, entry: Entry) -> None:
        if not self._file.closed:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()


def read_history(path: Path) -> list[Entry]:
    """All entries of a file, by time."""
    return sorted(_entries(path), key=lambda entry: entry.at)


def _entries(path: Path) -> Iterator[Entry]:
    with path.open() as file:
        for line in file:
            yield Entry(*json.loads(line))


class Operation(NamedTuple):
    """An invocation with its completion.

    Attributes
    ----------
    end : int or None
        When it completed; None if the outcome is unknown: it may take effect at any later time.
    outcome : str
        "ok", "fail" or "unknown".
    """

    begin: int
    end: int | None
    process: str
    what: str
    asked: Any
    outcome: str
    result: Any


def operations(history: Iterable[Entry]) -> list[Operation]:
    """Operations by invocation; one that never completed has an unknown outcome."""
    begun: dict[int, Entry] = {}
    done: dict[int, Entry] = {}
    for entry in history:
        if entry.op is not None:
            (begun if entry.kind == "invoke" else done)[entry.op] = entry
    found = []
    for op, begin in begun.items():
        end = done.get(op)
        outcome = "unknown" if end is None else end.kind
        at = end.at if end is not None and outcome != "unknown" else None
        result = None if end is None else end.value
        found.append(
            Operation(begin.at, at, begin.process, begin.what, begin.value, outcome, result)
        )
    return sorted(found, key=lambda one: one.begin)
