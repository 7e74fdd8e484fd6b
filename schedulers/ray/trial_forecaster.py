"""Forecasts of a trial for the sharing rule: in domain only, and with data loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from presage.errors import ConfigError
from presage.features.colocation import Colocation
from presage.features.device.device import Device, Share
from presage.features.device.device_class import PROCESSOR, device_class
from presage.features.job.data_loading import DataLoading
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.forecasters.predicted import check_risk
from presage.serving.predictor.prediction_backend import (
    ColocationForecast,
    JobForecast,
    PredictionBackend,
)

_TIME_SLICE = Share(1.0, "time-slice")


def calibrated_risk(risk: float, levels: Sequence[float]) -> float:
    """Return the largest risk up to ``risk`` whose memory bound the release is calibrated for.

    Parameters
    ----------
    levels : sequence of float
        Quantile levels of the release.

    Raises
    ------
    ConfigError
        The risk is not within (0, 0.5], or smaller than all that the release is calibrated for.
    """
    check_risk(risk)
    offered = sorted(round(1 - level, 6) for level in levels if level >= 0.5)
    usable = [one for one in offered if one <= risk]
    if not usable:
        known = ", ".join(f"{one:g}" for one in offered)
        raise ConfigError(
            f"risk={risk:g} is below those that the release is calibrated for ({known}); accept a "
            "larger risk, or train a release with a higher quantile level"
        )
    return usable[-1]


class TrialForecaster:
    """Forecaster of copies of one trial on one device.

    A forecast is missing if the memory, the utilization or a slowdown is out of domain.

    Parameters
    ----------
    risk : float
        Probability that a trial takes more than its memory bound, as calibrated in the release.
    loading : DataLoading, optional
        How the trial loads its samples, if the features describe steps without loading.
    process_bytes : int
        Memory that each trial takes in addition to the forecast.
    """

    def __init__(
        self,
        predictor: PredictionBackend,
        device: Device,
        *,
        risk: float,
        loading: DataLoading | None = None,
        process_bytes: int = 0,
    ) -> None:
        self._predictor, self._device, self._loading = predictor, device, loading
        self._coverage = 0.8 if risk == 0.5 else round(1 - 2 * risk, 6)
        self._median, self._process_bytes = risk == 0.5, process_bytes
        self._solo: dict[str, JobForecast] = {}

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return the prediction of each job; the kinds are that of the device."""
        return [None if job.features is None else self._predicted(job) for job, _ in requests]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return the median slowdowns of each co-location; None out of domain."""
        members = [tuple(job.features for job in jobs if job.features) for _, jobs in requests]
        colocations = [
            Colocation(self._device, jobs, (_TIME_SLICE,) * len(jobs)) for jobs in members
        ]
        found = self._predictor.predict_interference(colocations, coverage=self._coverage)
        return [self._slowed(jobs, one) for jobs, one in zip(members, found, strict=True)]

    def _predicted(self, job: Job) -> RuntimePrediction:
        assert job.features is not None
        found = self._forecast(job.features)
        used, memory = found.compute_utilization, found.memory_bytes
        bound = memory.median if self._median else memory.high
        return RuntimePrediction(
            found.runtime_s.median,
            round(self._busy(found, used.median) * FULL_DEVICE_MILLI),
            round(bound) + self._process_bytes,
            memory.in_domain and used.in_domain,
            release_id=memory.release_id,
        )

    def _forecast(self, features: JobFeatures) -> JobForecast:
        key = features.job.job_id
        if key not in self._solo:
            placement = Placement(features, self._device)
            (self._solo[key],) = self._predictor.predict([placement], coverage=self._coverage)
        return self._solo[key]

    def _busy(self, solo: JobForecast, used: float) -> float:
        """Return the fraction of the device that is used, with data loading."""
        loading, step_s = self._loading, solo.step_time_s.median
        if loading is None:
            return used
        busy_s = used * step_s
        if device_class(self._device) == PROCESSOR:  # it loads the samples, too
            cpu_s = loading.batch_size * loading.cpu_s + 2 * loading.hand_over_s
            busy_s += cpu_s / self._device.cores
        return min(1.0, busy_s / loading.loaded_step_s(step_s))

    def _slowed(
        self, jobs: Sequence[JobFeatures], found: ColocationForecast
    ) -> Sequence[float] | None:
        if not all(one.in_domain for one in found.slowdowns):
            return None
        medians = [one.median for one in found.slowdowns]
        if self._loading is None:
            return medians
        steps = [self._forecast(job).step_time_s.median for job in jobs]
        return [self._loaded(*row) for row in zip(steps, medians, strict=True)]

    def _loaded(self, step_s: float, slowdown: float) -> float:
        """Return the slowdown of a step with loading, of which only what computes is slowed down.

        It is an upper bound: the forecast is of jobs that compute all the time.
        """
        loading = self._loading
        assert loading is not None
        slower = loading
        if device_class(self._device) == PROCESSOR:
            cpu_s = loading.cpu_s * slowdown
            sample_s = loading.sample_s - loading.cpu_s + cpu_s
            slower = replace(loading, sample_s=sample_s, sample_cpu_s=cpu_s)
        return slower.loaded_step_s(step_s * slowdown) / loading.loaded_step_s(step_s)
