"""Inputs of a shim: its task's desired state and the node's lease, read from files."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.connection.lease import LEASE, read_lease
from presage.schedulers.live.agent.tasks.task import FULL_DEVICE_MILLI, DesiredState
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder

# Limit for the first lease, which an agent writes before it launches a shim.
_FIRST_LEASE_S = 10.0

Version = tuple[int, int, int] | None


class ShimInputs:
    """Last readable content of each file; a missing or damaged file changes nothing.

    Attributes
    ----------
    desired : DesiredState
        A full share, until the file could be read.
    lease_until_s : float or None
        By the boot-time clock; None until there was a lease.
    """

    def __init__(self, folder: TaskFolder, now_s: float) -> None:
        self.desired = DesiredState(FULL_DEVICE_MILLI)
        self.lease_until_s: float | None = None
        self._folder = folder
        self._no_lease_s = now_s + _FIRST_LEASE_S
        self._versions: dict[Path, Version] = {}

    def refresh(self) -> None:
        """Read the files that have changed."""
        folder = self._folder
        if self._has_changed(folder.desired_state_file):
            self.desired = folder.desired_state() or self.desired
        if self._has_changed(folder.state / LEASE):
            until_s = read_lease(folder.state)
            self.lease_until_s = self.lease_until_s if until_s is None else until_s

    def is_lease_over(self, now_s: float) -> bool:
        """Return whether the task may not run any more."""
        if now_s >= self.until_s:
            self.refresh()  # the lease may have been extended
        return now_s >= self.until_s

    def next_s(self) -> float:
        """Return when the lease ends; inf before the first lease."""
        return math.inf if self.lease_until_s is None else self.lease_until_s

    @property
    def until_s(self) -> float:
        """When the lease ends, or when the wait for the first lease does."""
        return self._no_lease_s if self.lease_until_s is None else self.lease_until_s

    def _has_changed(self, path: Path) -> bool:
        version = None
        with suppress(OSError):
            found = path.stat()
            version = found.st_ino, found.st_mtime_ns, found.st_size
        if version == self._versions.get(path, ()):
            return False
        self._versions[path] = version
        return True
