"""Noisy forecaster: random errors on another forecaster, to study the effect of accuracy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist

from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup, SpeedupForecaster, SpeedupRequest

_NORMAL = NormalDist()
_HIGH = _NORMAL.inv_cdf(0.9)  # level of the upper bound of a run time


class Noisy:
    """Forecaster that multiplies another forecaster's values by random factors.

    Factors are log-normal: ``bias`` is their median and ``spread`` the standard deviation of their
    logarithms (at 0.5, two in three are within 0.61 and 1.65 times the bias). Run times have one
    factor per job; memory, compute and slowdowns one per model. Only the part of a slowdown above 1
    is multiplied. Without bias, nine run times in ten are within the upper bound: it accounts for
    the spread. Factors depend on the seed and not on the order of requests.
    """

    def __init__(
        self, forecaster: Forecaster, *, spread: float, bias: float = 1.0, seed: int = 0
    ) -> None:
        self._forecaster, self._seed = forecaster, seed
        self._spread, self._log_bias = spread, math.log(bias)

    def predictions(self, requests: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Return predictions with random errors."""
        predictions = self._forecaster.predictions(requests)
        return [
            prediction and self._add_noise(job, prediction)
            for (job, _), prediction in zip(requests, predictions, strict=True)
        ]

    def slowdowns(
        self, requests: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Return slowdowns with random errors."""
        forecasts = self._forecaster.slowdowns(requests)
        return [
            factors
            and [
                1.0 + (slowdown - 1.0) * self._factor("slowdown", job.equivalence_class)
                for job, slowdown in zip(jobs, factors, strict=True)
            ]
            for (_, jobs), factors in zip(requests, forecasts, strict=True)
        ]

    def speedups(self, requests: Sequence[SpeedupRequest]) -> Sequence[Speedup | None]:
        """Return speed-ups without errors; None if the other forecaster predicts none."""
        if isinstance(self._forecaster, SpeedupForecaster):
            return self._forecaster.speedups(requests)
        return [None] * len(requests)

    def _add_noise(self, job: Job, prediction: RuntimePrediction) -> RuntimePrediction:
        model = job.equivalence_class
        factor = self._factor("runtime", job.job_id)
        return prediction._replace(
            runtime_s=prediction.runtime_s * factor,
            setup_s=prediction.setup_s * factor,
            high_s=prediction.slo_s * factor * math.exp(_HIGH * self._spread),
            compute_milli=round(prediction.compute_milli * self._factor("compute", model)),
            memory_bytes=round(prediction.memory_bytes * self._factor("memory", model)),
        )

    def _factor(self, quantity: str, key: object) -> float:
        text = f"{self._seed} {quantity} {key}"
        draw = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        return math.exp(self._log_bias + self._spread * _NORMAL.inv_cdf((draw + 0.5) / 2**64))
