"""Lease file of a node: how long its tasks may run, by the boot-time clock and for one boot."""

from __future__ import annotations

import time
from pathlib import Path

from presage.schedulers.live.agent.tasks.json_file import overwrite_json, read_json

LEASE = "lease"  # name of the file in the state folder
_MAX_S = 1e15


def boottime_s() -> float:
    """Return the seconds since the machine was started, including those in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the id of this boot; boot times of another boot are not comparable."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_lease(state: Path, until_s: float) -> None:
    """Let the tasks of a state folder run until a second of :func:`boottime_s`.

    A time in the past ends them. The lease holds for one boot, so it is not flushed to the disk;
    on a full disk it is overwritten in place.

    Raises
    ------
    OSError
        It cannot be written; the previous lease remains.
    ValueError
        ``until_s`` is not a finite number.
    """
    state.mkdir(parents=True, exist_ok=True)
    overwrite_json(state / LEASE, {"until_boottime_s": until_s, "boot_id": boot_id()})


def read_lease(state: Path) -> float | None:
    """Return when the lease ends; None if no lease was written since the machine was started."""
    stored = read_json(state / LEASE)
    if stored is None or stored.get("boot_id") != boot_id():
        return None
    until_s = stored.get("until_boottime_s")
    if isinstance(until_s, bool) or not isinstance(until_s, int | float):
        return None
    return float(until_s) if abs(until_s) < _MAX_S else None  # None for NaN, too
