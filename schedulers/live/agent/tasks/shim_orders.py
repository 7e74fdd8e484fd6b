"""What a shim is to do: as its folder and the node's lease have it now."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from presage.schedulers.live.agent.lease import LEASE, read_lease
from presage.schedulers.live.agent.tasks.task import FULL_DEVICE_MILLI, Wanted
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder

# For a first lease: an agent writes it before it launches a shim.
_FIRST_LEASE_S = 10.0

Version = tuple[int, int, int] | None


class Orders:
    """The last that could be read of each; a file that is gone or damaged changes nothing.

    Attributes
    ----------
    wanted : Wanted
        The whole share, if nothing could ever be read.
    lease_until_s : float or None
        By the clock of leases; None until there was a lease.
    """

    def __init__(self, folder: TaskFolder, now_s: float) -> None:
        self.wanted = Wanted(FULL_DEVICE_MILLI)
        self.lease_until_s: float | None = None
        self._folder = folder
        self._no_lease_s = now_s + _FIRST_LEASE_S
        self._versions: dict[Path, Version] = {}

    def look(self) -> None:
        """Read what has changed."""
        folder = self._folder
        if self._changed(folder.wanted_file):
            self.wanted = folder.wanted() or self.wanted
        if self._changed(folder.state / LEASE):
            until_s = read_lease(folder.state)
            self.lease_until_s = self.lease_until_s if until_s is None else until_s

    def lease_over(self, now_s: float) -> bool:
        """Whether the task may run no more."""
        if now_s >= self.until_s:
            self.look()  # it may have been extended since the last time
        return now_s >= self.until_s

    def next_s(self) -> float:
        """When the lease is over, as far as is known."""
        return math.inf if self.lease_until_s is None else self.lease_until_s

    @property
    def until_s(self) -> float:
        """When the lease is over; the task is given some time for its first one."""
        return self._no_lease_s if self.lease_until_s is None else self.lease_until_s

    def _changed(self, path: Path) -> bool:
        version = None
        with suppress(OSError):
            found = path.stat()
            version = found.st_ino, found.st_mtime_ns, found.st_size
        if version == self._versions.get(path, ()):
            return False
        self._versions[path] = version
        return True
