"""Processes of this machine from /proc: descendants, resource use, signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """Fields of ``/proc/PID/stat``, see proc(5); times in clock ticks."""

    state: str
    parent: int
    session: int
    cpu: int  # of the process itself
    cpu_of_reaped: int  # of its reaped descendants
    start: int  # since boot
    resident_pages: int


def stat(pid: int) -> Stat | None:
    """Return the fields of a process; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name is in parentheses, and may contain parentheses.
    words = text[text.rindex(b")") + 2 :].split()
    user, system, reaped_user, reaped_system = map(int, words[11:15])
    return Stat(
        words[0].decode(), int(words[1]), int(words[3]), user + system, reaped_user + reaped_system,
        int(words[19]), int(words[21]),
    )  # fmt: skip


def pids() -> Iterator[int]:
    """Yield the ids of all visible processes."""
    with os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name)


def descendants(ancestor: int) -> dict[int, Stat]:
    """Return all descendants of a process, including those that ended and are not reaped.

    A process whose parent ended belongs to the nearest ancestor that adopts orphans, as shims do.
    """
    children: dict[int, list[tuple[int, Stat]]] = {}
    for pid in pids():
        found = stat(pid)
        if found is not None:
            children.setdefault(found.parent, []).append((pid, found))
    below: dict[int, Stat] = {}
    todo = [ancestor]
    while todo:
        for pid, found in children.get(todo.pop(), ()):
            below[pid] = found
            todo.append(pid)
    return below


def environment(pid: int) -> dict[bytes, bytes]:
    """Return the initial environment of a process; empty if it cannot be read."""
    try:
        text = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    return dict(pair.partition(b"=")[::2] for pair in text.split(b"\0") if pair)


def resident_bytes(pid: int, found: Stat) -> int:
    """Return the memory of a process; if possible, shared memory counts proportionally."""
    with suppress(OSError, ValueError, IndexError):
        rollup = (_PROC / str(pid) / "smaps_rollup").read_bytes()
        return int(rollup[rollup.index(b"\nPss:") :].split()[1]) * 1024
    return found.resident_pages * _PAGE_BYTES


def seconds(ticks: int) -> float:
    """Convert clock ticks to seconds."""
    return ticks / _TICKS_PER_S


def real_uid(pid: int) -> int | None:
    """Return the real user of a process; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "status").read_bytes()
        return int(text[text.index(b"\nUid:") + 5 :].split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return None


def stat_listed(list_pids: Callable[[], set[int]]) -> dict[int, Stat]:
    """Return processes that are listed before and after they are read: no id is reused."""
    found = {pid: now for pid in list_pids() if (now := stat(pid)) is not None}
    again = list_pids() if found else set()
    return {pid: now for pid, now in found.items() if pid in again}


def send(signal_: signal.Signals, to: Mapping[int, Stat]) -> None:
    """Signal processes; skip those that ended, also if their id is in use again.

    Else a job with many processes could make its agent kill processes of others.
    """
    for pid, known in to.items():
        with suppress(ProcessLookupError, PermissionError):
            _send(pid, known.start, signal_)


def _send(pid: int, start: int, signal_: signal.Signals) -> None:
    try:
        opened = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an old kernel, or too many open files
        if (now := stat(pid)) is not None and now.start == start:
            os.kill(pid, signal_)
        return
    try:
        if (now := stat(pid)) is not None and now.start == start:
            signal.pidfd_send_signal(opened, signal_)
    finally:
        os.close(opened)
