"""The end of a task: it is asked for a checkpoint, then to end, then it is killed."""

from __future__ import annotations

from presage.schedulers.live.agent.tasks.job_process import JobProcess
from presage.schedulers.live.agent.tasks.task import TERMINATE_S
from presage.schedulers.live.agent.tasks.task_folder import TaskFolder


class Ending:
    """Begun at once, and for good.

    Parameters
    ----------
    why : str
        As the task's exit will say.
    checkpoint : bool
        Whether the job may write one first; it is asked to end once one is reported.
    until_s : float
        How long it may take for that. Where that is long over, as of a machine that was asleep, it
        is killed at once: another attempt may run by now.
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
        self._saves = checkpoint
        self._job, self._folder = job, folder
        self._asked_s = now_s
        self._until_s, self._last_s = until_s, until_s + TERMINATE_S
        report = folder.progress()
        self._saved_before = 0 if report is None else report.saved
        if checkpoint and now_s < until_s:
            job.ask_for_checkpoint()
        else:
            self._terminate(now_s)

    def go_on(self, now_s: float, *, checkpoint: bool) -> None:
        """Do what it is time for; without waiting for a checkpoint, if none is wanted any more."""
        if self._saves:
            if not checkpoint or now_s >= self._until_s or self._has_saved():
                self._terminate(now_s)
        elif now_s >= self._until_s:
            self._job.kill()

    def _terminate(self, now_s: float) -> None:
        self._saves = False
        self._until_s = min(now_s + TERMINATE_S, self._last_s)
        if now_s < self._until_s:
            self._job.terminate()
        else:
            self._job.kill()

    def _has_saved(self) -> bool:
        report = self._folder.progress()
        return report is not None and (
            report.saved > self._saved_before or report.saved_at_s > self._asked_s
        )
