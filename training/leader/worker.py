"""Workers of an elastic job as known to its leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from presage.training.data_set_grouping import Cursor
from presage.training.generation import Member
from presage.training.report import Report


class WorkerState(StrEnum):
    """State of a worker, in this order."""

    JOINING = "joining"
    READY = "ready"
    MEMBER = "member"
    LEAVING = "leaving"


@dataclass(slots=True)
class Worker:
    """Worker as known to the leader.

    Attributes
    ----------
    is_departing : bool
        Whether it requested to leave, which a resize does not revoke.
    """

    worker_id: str
    host: str
    port: int
    state: WorkerState = WorkerState.JOINING
    report: Report = field(default_factory=Report)
    is_departing: bool = False

    @property
    def member(self) -> Member:
        """The worker as a member of a generation."""
        return Member(self.worker_id, self.host, self.port)

    @property
    def is_leaving(self) -> bool:
        """Whether it leaves at the end of the current step."""
        return self.state is WorkerState.LEAVING

    def needs_state(self, cursor: Cursor) -> bool:
        """Whether it has to receive the training state at a cursor from another worker."""
        is_new = self.report.generation == 0  # its checkpoint may be of steps that were lost
        return is_new or not self.report.has_state or self.report.cursor < cursor


def worker_name(worker_id: str) -> str:
    """Return the name with which a worker was started: its id before the last ``.``."""
    return worker_id.rpartition(".")[0] or worker_id
