"""Ground truth from measured models: durations from a trace, slowdowns from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import mean

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job
from presage.schedulers.policies.sharing.sharing_settings import URGENT_WEIGHT
from presage.schedulers.simulator.ground_truth.measurements import Colocated, Measurements
from presage.schedulers.simulator.ground_truth.scaling_curve import ScalingCurve

SHARES = ("none", "caps", "weights")
SCALINGS = ("linear", "measured")


class MeasuredTruth:
    """Ground truth from measurements of each job's model.

    The traced duration applies on ``traced_kind``, or, if the job may not use that kind, on the
    kind from :meth:`Measurements.traced_kind`. On another kind it is scaled by the step times of
    the job's model. Co-located jobs have their measured slowdowns. For a co-location that was not
    measured, the effects of its pairs are added. A pair that was not measured shares the device's
    time: if their utilizations sum to more than 1, both slow down by that sum.

    Addition was chosen by ParvaGPU's measurements of three to five processes in a slice of an A100,
    predicted from those of two: its error is 5.9, 10.6 and 15.1 %; that of multiplication is 15.3,
    38 and 74 %.

    Parameters
    ----------
    duration_s : mapping of str to float
        Traced duration by job.
    shares : str
        Effect of allocated compute. "none": it limits placement only, and jobs use what they need.
        "caps": it is a hard limit, as MPS's thread percentage; the slowdown is the larger of those
        by the limit and by co-located jobs. "weights": it is a guaranteed share, as control groups'
        weights; a job may use what co-located jobs leave, and a latency-sensitive job's weight
        counts tenfold. Measured slowdowns of a pair then apply at equal weights, and a pair that
        was not measured waits when both need the device at once.
    undivided_share : float
        Under "weights", the fraction of the mutual slowdown that weights do not change, because of
        shared caches or processor cores: 0 if weights divide everything, 1 if they divide nothing.
    scaling : str
        Effect of the number of devices. "linear": a job with other devices than requested is slower
        or faster in proportion. "measured": as in the curve of its model
        (:class:`presage.schedulers.simulator.ground_truth.scaling_curve.ScalingCurve`), where one
        was measured; the traced duration applies to the requested devices on the fewest nodes, and
        the batch of all devices together is constant.

    Raises
    ------
    ValueError
        ``shares`` or ``scaling`` is unknown, or ``undivided_share`` is outside [0, 1].
    """

    def __init__(
        self,
        duration_s: Mapping[str, float],
        measurements: Measurements,
        traced_kind: str,
        *,
        shares: str = "none",
        undivided_share: float = 0.0,
        scaling: str = "linear",
    ) -> None:
        if scaling not in SCALINGS:
            raise ValueError(f"scaling={scaling!r}, must be one of {', '.join(SCALINGS)}")
        if shares not in SHARES:
            raise ValueError(f"shares={shares!r}, must be one of {', '.join(SHARES)}")
        if not 0.0 <= undivided_share <= 1.0:
            raise ValueError(
                f"undivided_share={undivided_share}, must be within 0 and 1; it is a fraction"
            )
        self._duration_s, self._measured = duration_s, measurements
        self._traced_kind, self._shares, self._undivided = traced_kind, shares, undivided_share
        self._scaling = scaling
        self._spread: dict[tuple[str, str], dict[int, float]] = {}
        for (model, kind, devices), times in measurements.spread.items():
            self._spread.setdefault((model, kind), {})[devices] = max(1.0, times)
        self._slowdowns: dict[Colocated, dict[str, float]] = {}

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Return the traced duration, scaled by step time and by the gang size."""
        curve = self._curve(job, kind) if gpus != job.gpus else None
        if curve is None:
            times = job.gpus / gpus
        else:
            requested_s = self._step_s(curve, job, job.gpus, 1)
            times = self._step_s(curve, job, gpus, 1) / requested_s
        duration_s = self._duration_s[job.job_id] * times
        traced_kind = self._measured.traced_kind(job, self._traced_kind)
        if kind == traced_kind:
            return duration_s
        step_s = self._measured.step_s
        return duration_s * step_s[job.model, kind] / step_s[job.model, traced_kind]

    def _curve(self, job: Job, kind: str) -> ScalingCurve | None:
        if self._scaling == "linear":
            return None
        return self._measured.scaling.get((job.model, kind))

    def _step_s(self, curve: ScalingCurve, job: Job, gpus: int, nodes: int) -> float:
        """Return a step's seconds; the batch of all devices is constant, whatever their number."""
        batch = self._measured.features[job.model].job.batch_size * job.gpus
        return curve.step_s(batch, gpus, nodes)

    def compute_milli(self, job: Job, kind: str) -> int:
        """Return the measured solo utilization in milli-devices; 1000 if not measured."""
        return min(
            FULL_DEVICE_MILLI, max(1, round(self._busy(job.model, kind) * FULL_DEVICE_MILLI))
        )

    def memory_bytes(self, job: Job, kind: str) -> int:
        """Return the measured peak memory; 0 if not measured."""
        return self._measured.memory_bytes.get((job.model, kind), 0)

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Return whether the peaks sum to at most ``memory_bytes`` and no pair was too large."""
        if sum(self.memory_bytes(job, kind) for job in members) > memory_bytes:
            return False
        models = sorted(job.model for job in members)
        return not any((kind, pair) in self._measured.too_large for pair in combinations(models, 2))

    def spread(self, job: Job, kind: str, gpus: int, nodes: int) -> float:
        """Return the measured ratio, at least 1, of the largest gang with at most ``gpus`` devices.

        That of the smallest gang is used if all measured gangs are larger. With measured scaling it
        is the ratio of the curve, also below 1.
        """
        curve = self._curve(job, kind)
        if curve is not None:
            return self._step_s(curve, job, gpus, nodes) / self._step_s(curve, job, gpus, 1)
        ratios = self._spread.get((job.model, kind))
        if not ratios:
            return 1.0
        return ratios[max((devices for devices in ratios if devices <= gpus), default=min(ratios))]

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> list[float]:
        """Return slowdowns of at least 1: a measured speedup by co-location is noise."""
        if self._shares == "weights":
            return self._weighted(kind, members)
        models = tuple(sorted(job.model for job, _ in members))
        by_model = self._slowdowns.get((kind, models))
        if by_model is None:
            by_model = self._slowdowns[kind, models] = self._colocated(kind, models)
        slowdowns = [by_model[job.model] for job, _ in members]
        if self._shares == "none":
            return slowdowns
        return [
            max(slowdown, self._busy(job.model, kind) * FULL_DEVICE_MILLI / milli)
            for slowdown, (job, milli) in zip(slowdowns, members, strict=True)
        ]

    def _weighted(self, kind: str, members: Sequence[tuple[Job, int]]) -> list[float]:
        busy = [self._busy(job.model, kind) for job, _ in members]
        weights = [
            milli * URGENT_WEIGHT if job.latency_sensitive else milli for job, milli in members
        ]
        effects = [
            [self._effect(kind, job.model, other.model) for other, _ in members]
            for job, _ in members
        ]
        slowdowns = weighted_slowdowns(effects, weights, self._undivided)
        shares = divide_by_weight(busy, weights)
        return [
            max(slowdown, demand / share) if demand else slowdown
            for slowdown, demand, share in zip(slowdowns, busy, shares, strict=True)
        ]

    def _effect(self, kind: str, model: str, other: str) -> float:
        """Return the slowdown, less 1, of a model co-located with another of equal weight.

        For a pair that was not measured: a step with utilization b spends the part b of its time on
        the device and 1 - b elsewhere. By mean value analysis of a closed network with a shared
        processor it takes 1 + b b' times as long: an arriving request finds the other job on the
        device b' of the time.

        References
        ----------
        Reiser, Lavenberg: Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 1980.
        """
        pair = tuple(sorted((model, other)))
        if (kind, pair) in self._measured.slowdowns:
            return self._colocated(kind, pair)[model] - 1.0
        return self._busy(model, kind) * self._busy(other, kind)

    def _busy(self, model: str, kind: str) -> float:
        return self._measured.busy.get((model, kind), 1.0)

    def _colocated(self, kind: str, models: tuple[str, ...]) -> dict[str, float]:
        """Return the slowdown of each model co-located with all the others."""
        measured = self._measured.slowdowns.get((kind, models))
        if measured is not None:
            return {
                model: max(
                    1.0, mean(s for m, s in zip(models, measured, strict=True) if m == model)
                )
                for model in models
            }
        if len(models) == 2:
            busy = sum(self._busy(model, kind) for model in models)
            return dict.fromkeys(models, max(1.0, busy))
        found = {}
        for i, model in enumerate(models):
            others = (*models[:i], *models[i + 1 :])
            pairs = (tuple(sorted((model, other))) for other in others)
            found[model] = 1.0 + sum(self._colocated(kind, pair)[model] - 1.0 for pair in pairs)
        return found


def weighted_slowdowns(
    effects: Sequence[Sequence[float]], weights: Sequence[float], undivided_share: float = 0.0
) -> list[float]:
    """Return the slowdown of each of several jobs that use a device at the same time now and then.

    ``effects[i][j]`` is the slowdown, less 1, of i co-located with j at equal weights. Unequal
    weights shift it to the job with the smaller weight, except for the fraction
    ``undivided_share``. The effects of several jobs are added. The result does not hold if the
    device is overcommitted.
    """

    def times(own: float, weight: float) -> float:
        return undivided_share + (1.0 - undivided_share) * 2 * weight / (own + weight)

    return [
        1.0 + sum(effect * times(own, weight)
                  for j, (effect, weight) in enumerate(zip(row, weights, strict=True)) if j != i)
        for i, (row, own) in enumerate(zip(effects, weights, strict=True))
    ]  # fmt: skip


def divide_by_weight(demands: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the share of a device that each demand gets, in proportion to the weights.

    A demand below its share is met in full; the remaining demands divide the rest in the same
    proportion (weighted max-min fairness).
    """
    shares = [0.0] * len(demands)
    free, unmet = 1.0, set(range(len(demands)))
    while unmet:
        weight = sum(weights[i] for i in unmet)
        met = {i for i in unmet if demands[i] <= free * weights[i] / weight}
        if not met:
            for i in unmet:
                shares[i] = free * weights[i] / weight
            break
        for i in met:
            shares[i] = demands[i]
        free -= sum(demands[i] for i in met)
        unmet -= met
    return shares
