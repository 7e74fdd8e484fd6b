"""Forecaster that uses the trained predictors of a service or of a release in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from presage.errors import (
    ConfigError,
    InvalidJobError,
    MissingMethodError,
    UnknownDeviceError,
)
from presage.features.colocation import Colocation
from presage.features.device.device import Device, Share
from presage.features.forecast import Forecast
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.scaling.scaling_forecast import forecast_scaling, solo_jobs
from presage.features.scaling.scaling_law import DEFAULT_LAW, ScalingLaw
from presage.features.scaling.scaling_request import (
    MAX_SIZES,
    GpuPlacement,
    ScalingForecast,
    ScalingForecasts,
    ScalingRequest,
)
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup, SpeedupRequest
from presage.serving.predictor.prediction_backend import ColocationForecast, JobForecast

DEFAULT_RISK = 0.1
_TIME_SLICE = Share(1.0, "time-slice")
_SPEEDUP_COVERAGE = 0.8


class Predictor(Protocol):
    """Interface of ``PresageClient`` and the in-process predictor."""

    def device(self, kind: str) -> Device:
        """Return the device of a kind, by any of its names."""
        ...

    def predict(self, placements: Sequence[Placement], *, coverage: float) -> Sequence[JobForecast]:
        """Return one forecast per placement."""
        ...

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float
    ) -> Sequence[ColocationForecast]:
        """Return one forecast per co-location."""
        ...

    def predict_scaling(self, request: ScalingRequest, *, coverage: float) -> ScalingForecasts:
        """Return the forecasts of one job at several numbers of devices and nodes."""
        ...


def check_risk(risk: float) -> None:
    """Check a risk.

    Raises
    ------
    ConfigError
        The risk is not within (0, 0.5].
    """
    if not 0 < risk <= 0.5:
        raise ConfigError(f"risk={risk}, must be above 0 and at most 0.5, the median")


class Predicted:
    """Forecaster with medians of run time, utilization and slowdown, and an upper memory bound.

    Jobs with equal features are predicted once and scaled by their iterations here. No forecast is
    available for a job without features or for a kind of device unknown to the predictor; the run
    time of a job without iterations is infinite.

    Parameters
    ----------
    risk : float
        Probability that a job takes more memory than predicted, as calibrated in the release: 0.5
        for the median, or 0.05 or 0.1 with current releases.
    law : ScalingLaw, optional
        Law of scaling to apply in this process to the predicted steps on one device; by default the
        predictor's own. A service of a version without that call is replaced by the built-in law.

    Raises
    ------
    ConfigError
        ``risk`` is not within (0, 0.5].
    """

    def __init__(
        self, predictor: Predictor, *, risk: float = DEFAULT_RISK, law: ScalingLaw | None = None
    ) -> None:
        check_risk(risk)
        self._law = law
        self._speedups: dict[tuple[object, ...], Speedup | None] = {}
        self._predictor, self._median = predictor, risk == 0.5
        self._coverage = 0.8 if self._median else round(1 - 2 * risk, 6)
        self._devices: dict[str, Device | None] = {}
        self._solo: dict[tuple[object, str], JobForecast | None] = {}

    @property
    def high_quantile(self) -> float:
        """Probability with which a run time is at most its upper bound, as calibrated."""
        return 0.5 + self._coverage / 2

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the prediction of each job on a kind of device; None if unavailable."""
        new: dict[tuple[object, str], Placement] = {}
        for job, kind in requests:
            key, device = (job.equivalence_class, kind), self._device(kind)
            if job.features is not None and device is not None and key not in self._solo:
                new[key] = Placement(job.features, device)
        if new:
            placements = list(new.values())
            forecasts: Sequence[JobForecast | None]
            try:
                forecasts = self._predict(placements)
            except InvalidJobError:  # one invalid job: predict each one separately
                forecasts = [self._predict_one(placement) for placement in placements]
            self._solo.update(zip(new, forecasts, strict=True))
        return [
            self._prediction(job, self._solo.get((job.equivalence_class, kind)))
            for job, kind in requests
        ]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return the median slowdowns of each co-location; None if unavailable."""
        slowdowns: list[Sequence[float] | None] = [None] * len(requests)
        indices, colocations = [], []
        for index, (kind, jobs) in enumerate(requests):
            device = self._device(kind)
            features: list[JobFeatures] = [job.features for job in jobs if job.features is not None]
            if device is not None and features and len(features) == len(jobs):
                indices.append(index)
                shares = (_TIME_SLICE,) * len(jobs)
                colocations.append(Colocation(device, tuple(features), shares))
        if colocations:
            forecasts = self._predictor.predict_interference(colocations, coverage=self._coverage)
            for index, forecast in zip(indices, forecasts, strict=True):
                slowdowns[index] = [slowdown.median for slowdown in forecast.slowdowns]
        return slowdowns

    def speedups(self, requests: Sequence[SpeedupRequest]) -> list[Speedup | None]:
        """Return the speed-up of each request; None if unavailable.

        Sizes of jobs with equal features and requests are predicted in one call.
        """
        new: dict[tuple[object, ...], dict[tuple[int, int], SpeedupRequest]] = {}
        for request in requests:
            if _speedup_key(request) not in self._speedups:
                job, kind, gpus, nodes, requested_nodes = request
                shared = job.equivalence_class, kind, job.gpus, requested_nodes
                new.setdefault(shared, {})[gpus, nodes] = request
        for sizes in new.values():
            rows = list(sizes.values())
            for begin in range(0, len(rows), MAX_SIZES):
                part = rows[begin : begin + MAX_SIZES]
                self._speedups.update(zip(map(_speedup_key, part), self._scaled(part), strict=True))
        return [self._speedups[_speedup_key(request)] for request in requests]

    def _scaled(self, requests: Sequence[SpeedupRequest]) -> Sequence[Speedup | None]:
        """Return the speed-ups of one job at several sizes."""
        job, kind, _, _, requested_nodes = requests[0]
        device = self._device(kind)
        if job.features is None or device is None:
            return [None] * len(requests)
        try:
            request = ScalingRequest(
                job.features,
                device,
                tuple(GpuPlacement(gpus, nodes) for _, _, gpus, nodes, _ in requests),
                GpuPlacement(job.gpus, requested_nodes),
            )
            return [_speedup(one) for one in self._scaling(request).forecasts]
        except InvalidJobError:
            return [None] * len(requests)

    def _scaling(self, request: ScalingRequest) -> ScalingForecasts:
        if self._law is None:
            try:
                return self._predictor.predict_scaling(request, coverage=_SPEEDUP_COVERAGE)
            except MissingMethodError:
                self._law = DEFAULT_LAW
        jobs = solo_jobs(request)
        forecasts = self._predict([Placement(job, request.device) for job in jobs.values()])
        steps = {size: one.step_time_s for size, one in zip(jobs, forecasts, strict=True)}
        return forecast_scaling(self._law, request, steps, coverage=_SPEEDUP_COVERAGE, fitted=False)

    def _predict(self, placements: Sequence[Placement]) -> Sequence[JobForecast]:
        return self._predictor.predict(placements, coverage=self._coverage)

    def _predict_one(self, placement: Placement) -> JobForecast | None:
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

    def _prediction(self, job: Job, forecast: JobForecast | None) -> RuntimePrediction | None:
        if forecast is None or job.features is None:
            return None
        iterations = job.features.job.iterations  # of the predicted run time
        step_s, runtime_s = forecast.step_time_s, forecast.runtime_s
        setup_s = max(0.0, runtime_s.median - iterations * step_s.median)
        high_setup_s = max(setup_s, runtime_s.high - iterations * step_s.high)
        return RuntimePrediction(
            setup_s + job.iterations * step_s.median if job.iterations else float("inf"),
            round(forecast.compute_utilization.median * FULL_DEVICE_MILLI),
            round(self._bound(forecast.memory_bytes)),
            forecast.memory_bytes.in_domain,
            setup_s,
            high_setup_s + job.iterations * step_s.high,
            step_s.release_id,
        )

    def _bound(self, forecast: Forecast) -> float:
        return forecast.median if self._median else forecast.high


def _speedup_key(request: SpeedupRequest) -> tuple[object, ...]:
    job, kind, gpus, nodes, requested_nodes = request
    return job.equivalence_class, kind, job.gpus, requested_nodes, gpus, nodes


def _speedup(forecast: ScalingForecast) -> Speedup:
    found = forecast.speedup
    return Speedup(found.median, found.low, found.high, forecast.sync_share)
