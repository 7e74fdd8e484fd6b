"""Speed of an elastic job by its size: predicted first, then fitted to its measured steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from presage.features.scaling.scaling_fit import ScalingFit
from presage.features.scaling.scaling_law import DEFAULT_LAW, ScaledSteps, scaled_steps
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.speedup import Speedup

Size = tuple[int, int]  # devices, nodes
_LEAST_S = 1e-6
UNKNOWN_RUN_S = 3600.0  # of a job as requested of which nothing is predicted or measured
_UNKNOWN_SHARE = 0.5  # of a step on several devices, for forecasters that do not predict it


class JobSpeed:
    """Run times of a job on a kind of device, by its numbers of devices and nodes.

    A size that the job has had takes as long as was measured. The predicted times of the others are
    corrected by the measured ones as the prediction service corrects them
    (:class:`presage.features.scaling.scaling_fit.ScalingFit`).

    Parameters
    ----------
    measured_s : mapping of (devices, nodes) to float
        Run time of the whole job at its measured speed.

    Attributes
    ----------
    is_known : bool
        Whether a run time was predicted or measured.
    """

    def __init__(
        self, job: Job, kind: str, forecasts: Forecasts, measured_s: Mapping[Size, float]
    ) -> None:
        self.job = job
        self._kind, self._forecasts, self._measured_s = kind, forecasts, measured_s
        self._requested_s = forecasts.prediction(job, kind).runtime_s
        if not math.isfinite(self._requested_s) and measured_s:
            size, run_s = next(iter(measured_s.items()))
            self._requested_s = run_s * forecasts.speedup(job, kind, *size).median
        self.is_known = math.isfinite(self._requested_s)
        if not self.is_known:  # else it would wait until no other job gains from its devices
            self._requested_s = UNKNOWN_RUN_S
        self._known: dict[Size, float] = dict(measured_s)
        self._fit: ScalingFit | None = None

    @property
    def largest_measured(self) -> int:
        """Largest number of devices that the job has had, or its request."""
        return max((gpus for gpus, _ in self._measured_s), default=self.job.gpus)

    def predict(self, sizes: Iterable[Size]) -> None:
        """Predict several sizes at once, which is faster than one after another."""
        new = [size for size in dict.fromkeys(sizes) if size not in self._known]
        if not new:
            return
        steps = self._predicted(new)
        if self._has_fit():
            steps_s = np.exp(self._fitted().predict(steps)[0]).tolist()
        else:
            steps_s = steps.step_s.tolist()
        self._known.update(zip(new, steps_s, strict=True))

    def run_s(self, size: Size) -> float:
        """Return the run time of the whole job in seconds."""
        if size not in self._known:
            self.predict([size])
        return self._known[size]

    def _has_fit(self) -> bool:
        usable = any(run_s > _LEAST_S for run_s in self._measured_s.values())
        return usable and self._requested_s > _LEAST_S

    def _fitted(self) -> ScalingFit:
        if self._fit is None:
            sizes = [size for size, run_s in self._measured_s.items() if run_s > _LEAST_S]
            measured_s = np.array([self._measured_s[size] for size in sizes])
            self._fit = ScalingFit(DEFAULT_LAW, self._predicted(sizes), measured_s)
        return self._fit

    def _predicted(self, sizes: list[Size]) -> ScaledSteps:
        """Return the predicted run times; all devices together process a constant batch."""
        speedups = self._forecasts.speedups(self.job, self._kind, sizes)
        return scaled_steps(
            [
                (*size, self.job.gpus / size[0], self._requested_s / found.median,
                 _sync_share(found, size))
                for size, found in zip(sizes, speedups, strict=True)
            ]
        )  # fmt: skip


def _sync_share(speedup: Speedup, size: Size) -> float:
    if speedup.sync_share is None:
        return _UNKNOWN_SHARE if size[0] > 1 else 0.0
    return speedup.sync_share
