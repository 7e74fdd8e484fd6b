"""Monotonic clock of a cluster, independent of changes to the machine's clocks."""

from __future__ import annotations

from presage.schedulers.live.agent.connection.lease import boot_id, boottime_s
from presage.schedulers.live.controller.journal.records import ClockSet


class ClusterClock:
    """Clock that counts seconds since the cluster was created.

    It is based on the boot-time clock, which cannot be set. It continues while the controller is
    stopped, and stands still while the machine is off.

    Parameters
    ----------
    stored : ClockSet or None
        Last record of the clock in the journal.
    min_s : float
        Time of the journal's last record.

    Attributes
    ----------
    unsaved : ClockSet or None
        Record to write to the journal, if the machine was restarted.
    """

    def __init__(self, stored: ClockSet | None, min_s: float) -> None:
        boot, boot_s = boot_id(), boottime_s()
        self.unsaved: ClockSet | None = None
        if stored is None or stored.boot_id != boot or boot_s + stored.offset_s < min_s:
            stored = self.unsaved = ClockSet(boot, min_s - boot_s, min_s)
        self._offset_s = stored.offset_s

    def now_s(self) -> float:
        """Return the current time in seconds."""
        return boottime_s() + self._offset_s
