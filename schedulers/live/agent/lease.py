"""Until when a node's tasks may run: by a clock that nobody sets, and of this boot alone."""

from __future__ import annotations

import time
from pathlib import Path

from presage.schedulers.live.agent.tasks.json_file import overwrite_json, read_json

LEASE = "lease"  # the file's name, in the state folder
_MOST_S = 1e15


def boottime_s() -> float:
    """Seconds since the machine was started, also those it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Of this start of the machine: after another one its seconds mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_lease(state: Path, until_s: float) -> None:
    """Let the tasks of a state folder run until a second of :func:`boottime_s`.

    One that has passed ends them. A lease is of one boot, so nobody waits for the disk; on a full
    one tasks run on.

    Raises
    ------
    OSError
        It cannot be written; the one before holds.
    ValueError
        Not a finite number.
    """
    state.mkdir(parents=True, exist_ok=True)
    overwrite_json(state / LEASE, {"until_boottime_s": until_s, "boot_id": boot_id()})


def read_lease(state: Path) -> float | None:
    """Until when tasks may run; None where nobody has said so since the machine was started."""
    said = read_json(state / LEASE)
    if said is None or said.get("boot_id") != boot_id():
        return None
    until_s = said.get("until_boottime_s")
    if isinstance(until_s, bool) or not isinstance(until_s, int | float):
        return None
    return float(until_s) if abs(until_s) < _MOST_S else None  # nor if it is NaN
