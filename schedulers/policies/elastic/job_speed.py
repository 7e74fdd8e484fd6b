"""Speed of an elastic job by its size: predicted first, then fitted to its measured steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job

Size = tuple[int, int]  # devices, nodes
_LINK_KINDS = 3  # within a node, between two nodes, between more
# Weight of the prediction against one measured size, in the mean of the logarithms of their ratio.
_PRIOR_WEIGHT = 0.5


class JobSpeed:
    """Run times of a job on a kind of device, by its numbers of devices and nodes.

    A size that the job has had takes as long as was measured. Another one takes the predicted time
    times the mean ratio of measured to predicted times, where sizes with links of the same kind
    count first: within a node, between two nodes, and between more.

    Parameters
    ----------
    measured_s : mapping of (devices, nodes) to float
        Run time of the whole job at its measured speed.
    """

    def __init__(
        self, job: Job, kind: str, forecasts: Forecasts, measured_s: Mapping[Size, float]
    ) -> None:
        self.job = job
        self._kind, self._forecasts, self._measured_s = kind, forecasts, measured_s
        self._requested_s = forecasts.prediction(job, kind).runtime_s
        if not math.isfinite(self._requested_s) and measured_s:
            size, run_s = next(iter(measured_s.items()))
            self._requested_s = run_s * self._speedup(size)
        self._factors: tuple[float, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether a run time was predicted or measured."""
        return math.isfinite(self._requested_s)

    @property
    def largest_measured(self) -> int:
        """Largest number of devices that the job has had, or its request."""
        return max((gpus for gpus, _ in self._measured_s), default=self.job.gpus)

    def run_s(self, size: Size) -> float:
        """Return the run time of the whole job in seconds; infinite if unknown."""
        measured = self._measured_s.get(size)
        if measured is not None:
            return measured
        predicted_s = self._requested_s / self._speedup(size)
        if not self._measured_s or not self.is_known:
            return predicted_s
        if not self._factors:
            self._factors = self._fit()
        return predicted_s * self._factors[_link_kind(size)]

    def _speedup(self, size: Size) -> float:
        return self._forecasts.speedup(self.job, self._kind, *size).median

    def _fit(self) -> tuple[float, ...]:
        """Return the factor on predicted run times for each kind of link."""
        ratios: list[list[float]] = [[] for _ in range(_LINK_KINDS)]
        for size, run_s in self._measured_s.items():
            if run_s > 0 and self._requested_s > 0:
                ratio = math.log(run_s * self._speedup(size) / self._requested_s)
                ratios[_link_kind(size)].append(ratio)
        every = [ratio for of_link in ratios for ratio in of_link]
        if not every:
            return (1.0,) * _LINK_KINDS
        mean = sum(every) / len(every)
        return tuple(
            math.exp((mean * _PRIOR_WEIGHT + sum(of_link)) / (_PRIOR_WEIGHT + len(of_link)))
            for of_link in ratios
        )


def _link_kind(size: Size) -> int:
    return min(size[1], _LINK_KINDS) - 1
