"""The agent's forecasts: what the controller sent with each task (C7), and a service's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job


class ToldJobs:
    """What the controller said of the jobs on a node.

    Attributes
    ----------
    by_job : dict of str to mapping of str to RuntimePrediction
        By job and kind of device.
    binding : set of str
        Jobs of which nobody else is asked.
    """

    def __init__(self) -> None:
        self.by_job: dict[str, Mapping[str, RuntimePrediction]] = {}
        self.binding: set[str] = set()

    def forget(self, job_id: str) -> None:
        """A job that is not here any more."""
        self.by_job.pop(job_id, None)
        self.binding.discard(job_id)


class ToldForecasts:
    """The controller's words."""

    def __init__(self, told: ToldJobs) -> None:
        self._told = told

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> Sequence[RuntimePrediction | None]:
        """Of each, as it was sent."""
        return [self._told.by_job.get(job.job_id, {}).get(kind) for job, kind in asked]

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """The controller sends none."""
        return [None] * len(asked)


class SecondForecasts:
    """A second predictor (N8), which is asked first; what it does not know, the controller does.

    Where it fails, :class:`presage.schedulers.core.forecasts.Forecasts` goes by the controller's
    words.

    Parameters
    ----------
    told : ToldJobs
        Looked at when something is asked. What was promised stays what it was when the controller
        sent the task, and of jobs that are ``binding`` all of it.
    """

    def __init__(self, told: ToldJobs, second: Forecaster) -> None:
        self._told, self._second, self._first = told, second, ToldForecasts(told)

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> Sequence[RuntimePrediction | None]:
        """Of each."""
        told = list(self._first.predictions(asked))
        free = [i for i, (job, _) in enumerate(asked) if job.job_id not in self._told.binding]
        anew = self._second.predictions([asked[i] for i in free]) if free else []
        for i, new in zip(free, anew, strict=True):
            told[i] = _kept(new, told[i])
        return told

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Of each, by the second predictor alone."""
        return self._second.slowdowns(asked)


def _kept(new: RuntimePrediction | None, old: RuntimePrediction | None) -> RuntimePrediction | None:
    """What is foretold anew, by the promise of old."""
    if new is None or old is None:
        return new or old
    return new._replace(high_s=old.promised_s)
