"""The agent's forecasts: what the controller sent with each task (C7), or a service's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from presage.schedulers.forecasts import Forecaster, Outlook
from presage.schedulers.job import Job


class ToldForecasts:
    """A second predictor (N8), where the agent has one; else the controller's words.

    Parameters
    ----------
    told : mapping
        By job and kind of device; looked at when something is asked.
    second : Forecaster or None
        Asked first; what was promised stays what it was when the controller sent the task.
    """

    def __init__(
        self, told: Mapping[str, Mapping[str, Outlook]], second: Forecaster | None = None
    ) -> None:
        self._told, self._second = told, second

    def outlooks(self, asked: Sequence[tuple[Job, str]]) -> Sequence[Outlook | None]:
        """Of each."""
        told = [self._told.get(job.job_id, {}).get(kind) for job, kind in asked]
        if self._second is None:
            return told
        anew = self._second.outlooks(asked)
        return [_kept(new, old) for new, old in zip(anew, told, strict=True)]

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Of each; the controller sends none."""
        return [None] * len(asked) if self._second is None else self._second.slowdowns(asked)


def _kept(new: Outlook | None, old: Outlook | None) -> Outlook | None:
    """What is foretold anew, by the promise of old."""
    if new is None or old is None:
        return new or old
    return new._replace(high_s=old.promised_s)
