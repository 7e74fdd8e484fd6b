"""Forecasters of a node agent: the controller's forecasts (C7) and a local predictor's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job


class ReceivedForecasts:
    """Forecasts that the controller sent for the jobs on a node.

    Attributes
    ----------
    by_job : dict of str to mapping of str to RuntimePrediction
        By job and kind of device.
    binding : set of str
        Jobs for which only the controller's forecasts are used.
    """

    def __init__(self) -> None:
        self.by_job: dict[str, Mapping[str, RuntimePrediction]] = {}
        self.binding: set[str] = set()

    def forget(self, job_id: str) -> None:
        """Remove a job that has left the node."""
        self.by_job.pop(job_id, None)
        self.binding.discard(job_id)


class ControllerForecaster:
    """Forecaster that returns what the controller sent."""

    def __init__(self, received: ReceivedForecasts) -> None:
        self._received = received

    def predictions(self, pairs: Sequence[tuple[Job, str]]) -> Sequence[RuntimePrediction | None]:
        """Return the received prediction of each job on each kind of device."""
        by_job = self._received.by_job
        return [by_job.get(job.job_id, {}).get(kind) for job, kind in pairs]

    def slowdowns(
        self, colocations: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Return no slowdowns: the controller sends none."""
        return [None] * len(colocations)


class LocalForecaster:
    """Local predictor (N8); the controller's forecasts fill in what it does not know.

    If it fails, :class:`presage.schedulers.core.forecasts.Forecasts` uses the controller's
    forecasts.

    Parameters
    ----------
    received : ReceivedForecasts
        Read at each request. The SLO stays what it was when the controller sent the task; for jobs
        that are ``binding``, so does the whole prediction.
    """

    def __init__(self, received: ReceivedForecasts, local: Forecaster) -> None:
        self._received, self._local = received, local
        self._controller = ControllerForecaster(received)

    def predictions(self, pairs: Sequence[tuple[Job, str]]) -> Sequence[RuntimePrediction | None]:
        """Return the prediction of each job on each kind of device."""
        found = list(self._controller.predictions(pairs))
        binding = self._received.binding
        free = [i for i, (job, _) in enumerate(pairs) if job.job_id not in binding]
        local = self._local.predictions([pairs[i] for i in free]) if free else []
        for i, prediction in zip(free, local, strict=True):
            found[i] = _with_received_slo(prediction, found[i])
        return found

    def slowdowns(
        self, colocations: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> Sequence[Sequence[float] | None]:
        """Return the slowdowns of each co-location, from the local predictor only."""
        return self._local.slowdowns(colocations)


def _with_received_slo(
    local: RuntimePrediction | None, received: RuntimePrediction | None
) -> RuntimePrediction | None:
    """Return the local prediction with the run time bound that the controller sent."""
    if local is None or received is None:
        return local or received
    return local._replace(high_s=received.slo_s)
