"""The end of a task: it is asked for a checkpoint, then to end, then it is killed."""

from __future__ import annotations

from presage.schedulers.agent.job_process import JobProcess
from presage.schedulers.agent.task import TERMINATE_S
from presage.schedulers.agent.task_folder import TaskFolder


class Ending:
    """Begun at once, and for good.

    Parameters
    ----------
    why : str
        As the task's exit will say.
    checkpoint : bool
        Whether the job has ``grace_s`` to write one; it is over once one is reported.
    """

    def __init__(
        self,
        job: JobProcess,
        folder: TaskFolder,
        why: str,
        now_s: float,
        *,
        checkpoint: bool,
        grace_s: float,
    ) -> None:
        self.why = why
        self._saves = checkpoint
        self._job, self._folder = job, folder
        self._asked_s = now_s
        self._until_s = now_s + grace_s
        report = folder.progress()
        self._saved_before = 0 if report is None else report.saved
        if checkpoint:
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
        self._until_s = now_s + TERMINATE_S
        self._job.terminate()

    def _has_saved(self) -> bool:
        report = self._folder.progress()
        return report is not None and (
            report.saved > self._saved_before or report.saved_at_s > self._asked_s
        )
