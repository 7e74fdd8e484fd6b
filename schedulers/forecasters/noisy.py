"""Forecasts made worse on purpose, to study how good they must be."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist

from presage.schedulers.core.forecasts import Forecaster, RuntimePrediction
from presage.schedulers.core.job import Job

_NORMAL = NormalDist()
_HIGH = _NORMAL.inv_cdf(0.9)  # a run time is promised with this certainty


class Noisy:
    """Another forecaster's answers, each times a factor that is drawn once for what it is about.

    Factors are log-normal: their median is ``bias``, their logarithms' standard deviation
    ``spread`` (0.5: two in three are within 0.61 and 1.65 times the bias). A run time's is drawn
    by job; memory, compute and slowdowns are of a model, and so are their factors. Of a slowdown
    the part above 1 is changed. Nine run times in ten are within the upper bound, where there is no
    bias: whoever foretells so knows the spread. Equal seed, equal factors, in whatever order they
    are asked for.
    """

    def __init__(
        self, forecaster: Forecaster, *, spread: float, bias: float = 1.0, seed: int = 0
    ) -> None:
        self._forecaster, self._seed = forecaster, seed
        self._spread, self._log_bias = spread, math.log(bias)

    def predictions(self, asked: Sequence[tuple[Job, str]]) -> list[RuntimePrediction | None]:
        """Of each, off by its factors."""
        told = self._forecaster.predictions(asked)
        return [
            prediction and self._changed(job, prediction)
            for (job, _), prediction in zip(asked, told, strict=True)
        ]

    def slowdowns(
        self, asked: Sequence[tuple[str, tuple[Job, ...]]]
    ) -> list[Sequence[float] | None]:
        """Of each, off by its factors."""
        told = self._forecaster.slowdowns(asked)
        return [
            factors
            and [
                1.0 + (slowdown - 1.0) * self._factor("slowdown", job.equivalence_class)
                for job, slowdown in zip(jobs, factors, strict=True)
            ]
            for (_, jobs), factors in zip(asked, told, strict=True)
        ]

    def _changed(self, job: Job, prediction: RuntimePrediction) -> RuntimePrediction:
        model = job.equivalence_class
        factor = self._factor("runtime", job.job_id)
        return prediction._replace(
            runtime_s=prediction.runtime_s * factor,
            setup_s=prediction.setup_s * factor,
            high_s=prediction.promised_s * factor * math.exp(_HIGH * self._spread),
            compute_milli=round(prediction.compute_milli * self._factor("compute", model)),
            memory_bytes=round(prediction.memory_bytes * self._factor("memory", model)),
        )

    def _factor(self, what: str, whose: object) -> float:
        text = f"{self._seed} {what} {whose}"
        drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        return math.exp(self._log_bias + self._spread * _NORMAL.inv_cdf((drawn + 0.5) / 2**64))
