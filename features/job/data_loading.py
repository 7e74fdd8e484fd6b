"""Law of the data stalls of a job: how long each step waits for its samples.

A device waits for samples if a step needs them faster than the loader delivers them. The slowest of
the pipeline's stages sets the pace: the step, the worker processes, or the cores of the host.

References
----------
Mohan, Phanishayee, Raniwala, Chidambaram: Analyzing and Mitigating Data Stalls in DNN Training,
VLDB 2021. Its stalls of fetching and of preparing are here the parts of a sample's time that wait
and that compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from presage.errors import InvalidJobError
from presage.features.forecast import Forecast

MAX_SAMPLE_S = 86_400.0
MAX_WORKERS = 4096
SMALL_STALL = 0.05  # share of a step

# Of any batch, and by its size: processes on a virtual machine with two cores. Fitted to a job that
# is in no reported row of the benchmark.
HAND_OVER_S, HAND_OVER_BYTES_PER_S = 1.7e-03, 1.9e09

STEP, WORKERS, HOST_CORES = "step", "loader workers", "host cores"
TRAINING_PROCESS = "training process"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoading:
    """Loading of the samples of a job by ``torch.utils.data.DataLoader`` or a loader like it.

    Attributes
    ----------
    sample_s : float
        Seconds in which one process loads, transforms and collates one sample.
    sample_cpu_s : float, optional
        Part of it that occupies a core; all of it by default. The rest waits for storage.
    workers : int
        Worker processes that load batches ahead. With 0 the training process loads each batch
        between two steps.
    batch_size : int
    hand_over_s : float
        Seconds in which a worker writes a batch to shared memory, and again in which the training
        process takes it over. On a processor about :func:`processor_hand_over_s`.
    host_cores : float
        Cores that workers and step share; infinite if they are never short.
    step_cores : float
        Cores that the step occupies by itself: at least the one of the training process for a
        GPU, and the busy cores of a processor.
    """

    sample_s: float
    workers: int
    batch_size: int
    sample_cpu_s: float | None = None
    hand_over_s: float = 0.0
    host_cores: float = math.inf
    step_cores: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.sample_s <= MAX_SAMPLE_S:
            raise InvalidJobError(
                f"data loading: a sample takes {self.sample_s} s, must be a number of seconds "
                f"between 0 and {MAX_SAMPLE_S:,.0f}"
            )
        if not 0 <= self.cpu_s <= self.sample_s:
            raise InvalidJobError(
                f"data loading: a sample occupies a core for {self.cpu_s} s, must be between 0 and "
                f"the {self.sample_s} s that it takes"
            )
        if not 0 <= self.workers <= MAX_WORKERS:
            raise InvalidJobError(
                f"data loading: {self.workers} workers, must be between 0 and {MAX_WORKERS:,}"
            )
        if not 0 <= self.hand_over_s <= MAX_SAMPLE_S:
            raise InvalidJobError(
                f"data loading: handing a batch over takes {self.hand_over_s} s, must be a number "
                f"of seconds between 0 and {MAX_SAMPLE_S:,.0f}"
            )
        if self.batch_size < 1:
            raise InvalidJobError(f"data loading: batch of {self.batch_size} samples, must be >= 1")
        if not 0 <= self.step_cores <= self.host_cores:
            raise InvalidJobError(
                f"data loading: the step occupies {self.step_cores} of {self.host_cores} host "
                "cores, must be between 0 and all of them"
            )

    @property
    def cpu_s(self) -> float:
        """Seconds for which a sample occupies a core."""
        return self.sample_s if self.sample_cpu_s is None else self.sample_cpu_s

    def limits_s(self, step_s: float) -> dict[str, float]:
        """Return the time of a step that each stage of the pipeline allows, by its name.

        Parameters
        ----------
        step_s : float
            Seconds of a step whose samples are on the device already.
        """
        load_s = self.batch_size * self.sample_s
        if self.workers == 0:
            return {TRAINING_PROCESS: step_s + load_s}
        busy_s = step_s * self.step_cores + self.batch_size * self.cpu_s + 2 * self.hand_over_s
        return {
            STEP: step_s + self.hand_over_s,
            WORKERS: (load_s + self.hand_over_s) / self.workers,
            HOST_CORES: busy_s / self.host_cores,
        }

    def loaded_step_s(self, step_s: float) -> float:
        """Return the mean seconds of a step with the loading of its samples."""
        return max(self.limits_s(step_s).values())

    def stall_s(self, step_s: float) -> float:
        """Return the seconds of a step in which the device waits for samples, at least 0."""
        return self.loaded_step_s(step_s) - step_s

    def stall_share(self, step_s: float) -> float:
        """Return the stall as a share of the step with loading, within [0, 1]."""
        return self.stall_s(step_s) / self.loaded_step_s(step_s)

    def bottleneck(self, step_s: float) -> str:
        """Return the stage that sets the pace."""
        limits_s = self.limits_s(step_s)
        return max(limits_s, key=limits_s.__getitem__)

    def sufficient_workers(self, step_s: float, stall_share: float = SMALL_STALL) -> int | None:
        """Return the least number of workers that keeps the stall within a share of the step.

        None if no number up to ``MAX_WORKERS`` does: the host lacks cores, or handing a batch over
        takes too long.
        """
        none = replace(self, workers=0)
        if none.stall_share(step_s) <= stall_share:
            return 0
        one = replace(self, workers=1).limits_s(step_s)[WORKERS]
        least = max(1, math.floor(min(one * (1 - stall_share) / step_s, MAX_WORKERS)))
        for workers in (least, min(least + 1, MAX_WORKERS)):  # the quotient, rounded up
            if replace(self, workers=workers).stall_share(step_s) <= stall_share:
                return workers
        return None


def processor_hand_over_s(batch_bytes: int) -> float:
    """Return the seconds in which a process of a job on a processor hands over a batch.

    The training process of a GPU's job may take over batches while the device computes, by a thread
    that pins their memory, so that this time does not apply there.
    """
    return HAND_OVER_S + batch_bytes / HAND_OVER_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class LoadingForecast:
    """Forecast of a job that loads its samples.

    Attributes
    ----------
    loading : DataLoading
    solo_step : Forecast
        Step whose samples are on the device already.
    step_time_s, runtime_s : Forecast
        With loading. The intervals are those of the forecasts without loading: the loading time is
        taken as exact.
    """

    loading: DataLoading
    solo_step: Forecast
    step_time_s: Forecast
    runtime_s: Forecast

    def ordered(self, law: Callable[[float], float]) -> tuple[float, float, float]:
        """Return the median, low and high of a decreasing function of the step without loading."""
        step = self.solo_step
        return law(step.median), law(step.high), law(step.low)


def forecast_loading(
    loading: DataLoading, step_time: Forecast, runtime: Forecast, iterations: int
) -> LoadingForecast:
    """Return the forecast of a job with loading, from its forecasts without it.

    The law grows with the step time, so that it maps the bounds of an interval to bounds.
    """
    with_loading = _mapped(step_time, [loading.loaded_step_s(one) for one in _values(step_time)])
    stalls_s = [iterations * loading.stall_s(one) for one in _values(step_time)]
    longer = [one + stall for one, stall in zip(_values(runtime), stalls_s, strict=True)]
    return LoadingForecast(loading, step_time, with_loading, _mapped(runtime, sorted(longer)))


def _values(forecast: Forecast) -> tuple[float, float, float]:
    return forecast.low, forecast.median, forecast.high


def _mapped(forecast: Forecast, values: list[float]) -> Forecast:
    low, median, high = values
    return replace(forecast, low=low, median=median, high=high, quantiles=())
