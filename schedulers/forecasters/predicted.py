"""Forecasts by the predictors: of a service, or of a release in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from presage.errors import ConfigError, InvalidJobError, UnknownDeviceError
from presage.features.colocation import Colocation
from presage.features.device.device import Device, Share
from presage.features.forecast import Forecast
from presage.features.job.job import JobFeatures
from presage.features.placement import Placement
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.serving.predictor.forecasts import ColocationForecast, JobForecast

DEFAULT_RISK = 0.1
_TOGETHER = Share(1.0, "time-slice")


class Predictor(Protocol):
    """Interface that ``PresageClient`` and the in-process predictor have in common."""

    def device(self, kind: str) -> Device:
        """Of that kind, by any of its names."""
        ...

    def predict(self, placements: Sequence[Placement], *, coverage: float) -> Sequence[JobForecast]:
        """One forecast per placement."""
        ...

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float
    ) -> Sequence[ColocationForecast]:
        """One forecast per co-location."""
        ...


def check_risk(risk: float) -> None:
    """It can be asked for.

    Raises
    ------
    ConfigError
        It is no risk, or above that of the median.
    """
    if not 0 < risk <= 0.5:
        raise ConfigError(f"risk={risk}, must be above 0 and at most 0.5, the median")


class Predicted:
    """Medians of run time, utilization and slowdown, and a bound of memory.

    Jobs are asked for by their features, once for all that have the same: what their users ask for
    in iterations is multiplied here. Nothing is said of a job without features, of a kind of
    device that the predictor does not know, or of the run time of a job whose iterations nobody
    told.

    Parameters
    ----------
    risk : float
        Probability, as the release promises it, that a job takes more memory than it is foretold
        to: 0.5 for the median, or 0.05 or 0.1 as releases are made today.

    Raises
    ------
    ConfigError
        ``risk`` is none of those.
    """

    def __init__(self, predictor: Predictor, *, risk: float = DEFAULT_RISK) -> None:
        check_risk(risk)
        self._predictor, self._median = predictor, risk == 0.5
        self._coverage = 0.8 if self._median else round(1 - 2 * risk, 6)
        self._devices: dict[str, Device | None] = {}
        self._alone: dict[tuple[object, str], JobForecast | None] = {}

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Of each."""
        new: dict[tuple[object, str], Placement] = {}
        for job, kind in asked:
            key, device = (job.equivalence_class, kind), self._device(kind)
            if job.features is not None and device is not None and key not in self._alone:
                new[key] = Placement(job.features, device)
        if new:
            placements = list(new.values())
            try:
                told: Sequence[JobForecast | None] = self._predict(placements)
            except InvalidJobError:  # of one of them: the others need not suffer
                told = [self._predict_alone(placement) for placement in placements]
            self._alone.update(zip(new, told, strict=True))
        return [
            self._prediction(job, self._alone.get((job.equivalence_class, kind)))
            for job, kind in asked
        ]

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Of each, in the median."""
        answers: list[Sequence[float] | None] = [None] * len(asked)
        places, colocations = [], []
        for place, (kind, jobs) in enumerate(asked):
            device = self._device(kind)
            members = [job.features for job in jobs]
            known: list[JobFeatures] = [one for one in members if one is not None]
            if device is not None and known and len(known) == len(jobs):
                places.append(place)
                colocations.append(Colocation(device, tuple(known), (_TOGETHER,) * len(jobs)))
        if colocations:
            told = self._predictor.predict_interference(colocations, coverage=self._coverage)
            for place, forecast in zip(places, told, strict=True):
                answers[place] = [slowdown.median for slowdown in forecast.slowdowns]
        return answers

    def _predict(self, placements: Sequence[Placement]) -> Sequence[JobForecast]:
        return self._predictor.predict(placements, coverage=self._coverage)

    def _predict_alone(self, placement: Placement) -> JobForecast | None:
        try:
            return self._predict([placement])[0]
        except InvalidJobError:
            return None

    def _device(self, kind: str) -> Device | None:
        if kind not in self._devices:
            try:
                self._devices[kind] = self._predictor.device(kind)
            except UnknownDeviceError:
                self._devices[kind] = None
        return self._devices[kind]

    def _prediction(self, job: Job, told: JobForecast | None) -> RuntimePrediction | None:
        if told is None or job.features is None:
            return None
        of_features, step_s, runtime_s = (
            job.features.job.iterations,
            told.step_time_s,
            told.runtime_s,
        )
        setup_s = max(0.0, runtime_s.median - of_features * step_s.median)
        high_setup_s = max(setup_s, runtime_s.high - of_features * step_s.high)
        return RuntimePrediction(
            setup_s + job.iterations * step_s.median if job.iterations else float("inf"),
            round(told.compute_utilization.median * FULL_DEVICE_MILLI),
            round(self._bound(told.memory_bytes)),
            told.memory_bytes.in_domain,
            setup_s,
            high_setup_s + job.iterations * step_s.high,
            step_s.release_id,
        )

    def _bound(self, forecast: Forecast) -> float:
        return forecast.median if self._median else forecast.high
