"""Session of a script that runs without a leader, as a job of one worker."""

from __future__ import annotations

from presage.training.data_set_grouping import Cursor
from presage.training.generation import TRAIN, Generation, Member
from presage.training.report import Report
from presage.training.synchronous_accumulation import Ring
from presage.training.worker.announcements import SessionOverError


class SingleWorkerSession:
    """Session with the interface of :class:`~presage.training.worker.session.Session`."""

    worker_id, token, memory_bytes = "w0", "", 0

    def start(self, report: Report) -> None:
        """Do nothing: there is no leader."""

    def report(self, report: Report) -> None:
        """Do nothing: there is no leader."""

    def install_handlers(self) -> None:
        """Do nothing: the process ends on a signal as usual."""

    def progress(self, cursor: Cursor, done: float) -> None:
        """Do nothing: there is no leader."""

    def note_saved(self, saved: float) -> None:
        """Do nothing: there is no leader."""

    def report_saved(self, cursor: Cursor, problem: str) -> None:
        """Do nothing: there is no leader."""

    def note(self, text: str) -> None:
        """Do nothing: there is no leader."""

    def wait(self, after: int) -> Generation | None:
        """Return the only generation; raise SessionOverError after it."""
        if after:
            raise SessionOverError("done")
        return Generation(1, (Member(self.worker_id, "", 0),), (), Cursor(), TRAIN)

    def is_pause_requested(self, generation: int) -> bool:
        """Return False."""
        return False

    def is_ended(self, generation: int) -> bool:
        """Return False."""
        return False

    def take_removed(self) -> bool:
        """Return False."""
        return False

    def take_checkpoint_request(self) -> bool:
        """Return False."""
        return False

    def attach(self, ring: Ring | None) -> None:
        """Do nothing: there is no ring."""

    def close(self) -> None:
        """Do nothing: there is no connection."""
