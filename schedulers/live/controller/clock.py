"""The cluster's time: seconds that only ever grow, whatever is done to the machine's clocks."""

from __future__ import annotations

from presage.schedulers.live.agent.lease import boot_id, boottime_s
from presage.schedulers.live.controller.journal.records import ClockSet


class ClusterClock:
    """Seconds since the cluster's beginning, while its controller ran or could have.

    It goes by the clock that counts from the machine's start and that nobody can set. After a
    restart of the controller time goes on as if it had run; after one of the machine, from where
    it was.

    Parameters
    ----------
    known : ClockSet or None
        As the journal has it.
    least_s : float
        Time of the journal's last record.

    Attributes
    ----------
    new : ClockSet or None
        To be written to the journal, if the machine was started anew.
    """

    def __init__(self, known: ClockSet | None, least_s: float) -> None:
        boot, here_s = boot_id(), boottime_s()
        self.new: ClockSet | None = None
        if known is None or known.boot_id != boot or here_s + known.offset_s < least_s:
            known = self.new = ClockSet(boot, least_s - here_s, least_s)
        self._offset_s = known.offset_s

    def now_s(self) -> float:
        """The time."""
        return boottime_s() + self._offset_s
