"""What a worker reports to its leader: its position, and the progress in its heartbeats."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from presage.training.data_set_grouping import Cursor
from presage.training.report import Progress, Report
from presage.training.wire import Message


@dataclass(slots=True)
class ReportedState:
    """State of a worker as it reports it.

    Attributes
    ----------
    report : Report
        Last report; repeated to a leader that is started again.
    committed_s : float
        Time of the monotonic clock at which its position was committed.
    done, saved : float
        Committed fraction of all epochs, and that in the last checkpoint.
    """

    report: Report = field(default_factory=Report)
    committed_s: float = field(default_factory=time.monotonic)
    done: float = 0.0
    saved: float = 0.0

    def commit(self, cursor: Cursor, done: float) -> None:
        """Set the committed position and fraction of all epochs."""
        self.report = replace(self.report, cursor=cursor)
        self.committed_s, self.done = time.monotonic(), done

    def heartbeat(self) -> Message:
        """Return a heartbeat."""
        age_s = max(0.0, time.monotonic() - self.committed_s)
        report = self.report
        progress = Progress(report.generation, report.cursor, age_s, self.done, self.saved)
        return {"op": "heartbeat", **progress.to_message()}
