"""Termination of a task: request a checkpoint, then ask it to end, then kill it."""

from __future__ import annotations

from presage.schedulers.live.agent.tasks.job_process import JobProcess
from presage.schedulers.live.agent.tasks.task import TERMINATE_S
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder


class Termination:
    """Irreversible termination of a task, which begins at once.

    Parameters
    ----------
    why : str
        Reason that the task's exit will contain.
    checkpoint : bool
        Whether the job may save a checkpoint first; it is asked to end once it reports one.
    until_s : float
        When the time for the checkpoint ends. If that is long past, as after a suspend, the job is
        killed at once: another attempt may be running.
    """

    def __init__(
        self,
        job: JobProcess,
        folder: TaskFolder,
        why: str,
        now_s: float,
        *,
        checkpoint: bool,
        until_s: float,
    ) -> None:
        self.why = why
        self._is_saving = checkpoint
        self._job, self._folder = job, folder
        self._requested_s = now_s
        self._until_s, self._last_s = until_s, until_s + TERMINATE_S
        report = folder.progress()
        self._saved_before = 0 if report is None else report.saved
        if checkpoint and now_s < until_s:
            job.request_checkpoint()
        else:
            self._terminate(now_s)

    def advance(self, now_s: float, *, checkpoint: bool) -> None:
        """Take the step that is due; do not wait for a checkpoint that is no longer wanted."""
        if self._is_saving:
            if not checkpoint or now_s >= self._until_s or self._has_saved():
                self._terminate(now_s)
        elif now_s >= self._until_s:
            self._job.kill()

    def _terminate(self, now_s: float) -> None:
        self._is_saving = False
        self._until_s = min(now_s + TERMINATE_S, self._last_s)
        if now_s < self._until_s:
            self._job.terminate()
        else:
            self._job.kill()

    def _has_saved(self) -> bool:
        report = self._folder.progress()
        return report is not None and (
            report.saved > self._saved_before or report.saved_at_s > self._requested_s
        )
