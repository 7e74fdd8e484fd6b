"""Progress of a worker: to its leader, and to Presage's agents if they started the process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from presage.training.data_set_grouping import Cursor
from presage.training.worker.checkpoint import Checkpoint
from presage.training.worker.session import Session
from presage.training.worker.single_worker import SingleWorkerSession
from presage.training.worker.training_state import TrainingState

if TYPE_CHECKING:
    from presage import progress

PROGRESS_VARIABLE = "PRESAGE_PROGRESS"


class ProgressReports:
    """Reports of committed steps and of checkpoints.

    If ``PRESAGE_PROGRESS`` is set they also go to :mod:`presage.progress`, in samples of all
    epochs. The handler of SIGUSR1 that it sets is replaced by that of the session, so that a worker
    of a job leaves; a script without a leader writes a checkpoint instead.

    Parameters
    ----------
    samples, epochs : int
        Samples of an epoch; epochs of the whole job.
    """

    def __init__(
        self,
        session: Session | SingleWorkerSession,
        checkpoint: Checkpoint,
        samples: int,
        epochs: int,
    ) -> None:
        self._session, self._checkpoint = session, checkpoint
        self._samples, self._total = samples, samples * epochs
        self._run: progress.Run | None = None
        self._problem = ""
        if os.environ.get(PROGRESS_VARIABLE) and self._total > 0:
            from presage import progress

            self._run = progress.begin(self._total)
            session.install_handlers()

    def restored(self, cursor: Cursor) -> None:
        """Report the position of a checkpoint that was read."""
        self._session.note_saved(self._fraction(cursor))

    def committed(self, cursor: Cursor) -> None:
        """Report the position after a committed step, or after the state was received."""
        self._session.progress(cursor, self._fraction(cursor))
        if self._run is not None:
            self._run.step(self._done(cursor))

    def save_if_due(self, state: TrainingState) -> None:
        """Write a checkpoint if it is time to, or if a signal requests it."""
        is_requested = self._run is not None and self._run.checkpoint_requested
        if not (self._checkpoint.is_due or is_requested):
            return
        problem = self.save(state)
        if problem and problem != self._problem:
            self._session.note(f"checkpoint of step {state.cursor.step} is not written: {problem}")
        self._problem = problem

    def save_for_leader(self, state: TrainingState) -> None:
        """Write the checkpoint that the leader requests, and answer it."""
        self._session.report_saved(state.cursor, self.save(state))

    def save(self, state: TrainingState) -> str:
        """Write a checkpoint and report it; return why that is not possible, or ""."""
        problem = self._checkpoint.write(state)
        if not problem:
            self._session.note_saved(self._fraction(state.cursor))
        if self._run is not None:
            self._run.checkpoint_requested = False
            if not problem:
                self._run.saved(self._done(state.cursor))
        return problem

    def _done(self, cursor: Cursor) -> int:
        return min(self._total, cursor.epoch * self._samples + cursor.position)

    def _fraction(self, cursor: Cursor) -> float:
        return self._done(cursor) / self._total if self._total > 0 else 0.0
