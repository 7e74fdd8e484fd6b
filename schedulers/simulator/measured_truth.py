"""A world of measured models: how long jobs run by a trace, how slow together by measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import mean

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.job import Job
from presage.schedulers.policies.sharing.sharing_settings import URGENT_WEIGHT
from presage.schedulers.simulator.measurements import Measurements

SHARES = ("none", "caps", "weights")


class Measured:
    """Ground truth by measurements of each job's model.

    A job ran as long as its trace says on ``traced_kind``, or, where it may not use that, as
    :meth:`Measurements.traced_kind` says; on another kind it takes as much longer as its model's
    step does. Beside others it is as slow as was measured of them together. Of jobs that nobody
    measured together, the effects that each pair has on one of them are added; and a pair that
    nobody measured shares the device's time: if they need more than there is of it, each is slower
    by that much.

    Adding was chosen by ParvaGPU's measurements of three to five processes in a slice of an A100,
    told from those of two: it is off by 5.9, 10.6 and 15.1 %, multiplying by 15.3, 38 and 74 %.

    Parameters
    ----------
    duration_s : mapping of str to float
        By job.
    shares : str
        What compute that is granted does. "none": it only says who goes where, and jobs take what
        they need. "caps": it is all that a job gets, as by MPS's thread percentage; a job is as
        slow as its share makes it, if that is slower than its neighbours do. "weights": it is what
        a job gets when its neighbours want the rest, and it may use what they leave, as by control
        groups' weights; a latency-sensitive job's counts tenfold. Then what was measured of a pair
        is what they do to each other at equal weights, and two that nobody measured wait for each
        other when they happen to want the device at once.
    undivided : float
        Under "weights", the part of what two do to each other that no weight changes, as they share
        caches, or their processors a core: 0 if weights divide all, 1 if nothing.

    Raises
    ------
    ValueError
        ``shares`` is none of these, or ``undivided`` not within 0 and 1.
    """

    def __init__(
        self,
        duration_s: Mapping[str, float],
        measurements: Measurements,
        traced_kind: str,
        *,
        shares: str = "none",
        undivided: float = 0.0,
    ) -> None:
        if shares not in SHARES:
            raise ValueError(f"shares={shares!r}, must be one of {', '.join(SHARES)}")
        if not 0.0 <= undivided <= 1.0:
            raise ValueError(f"undivided={undivided}, must be within 0 and 1: it is a part")
        self._duration_s, self._measured = duration_s, measurements
        self._traced_kind, self._shares, self._undivided = traced_kind, shares, undivided
        self._spread: dict[tuple[str, str], dict[int, float]] = {}
        for (model, kind, devices), times in measurements.spread.items():
            self._spread.setdefault((model, kind), {})[devices] = max(1.0, times)
        self._together: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}

    def solo_s(self, job: Job, kind: str, gpus: int) -> float:
        """Of a smaller gang than was traced: in proportion."""
        duration_s = self._duration_s[job.job_id] * job.gpus / gpus
        traced_kind = self._measured.traced_kind(job, self._traced_kind)
        if kind == traced_kind:
            return duration_s
        step_s = self._measured.step_s
        return duration_s * step_s[job.model, kind] / step_s[job.model, traced_kind]

    def compute_milli(self, job: Job, kind: str) -> int:
        """All where nobody measured."""
        return min(
            FULL_DEVICE_MILLI, max(1, round(self._busy(job.model, kind) * FULL_DEVICE_MILLI))
        )

    def memory_bytes(self, job: Job, kind: str) -> int:
        """0 where nobody measured."""
        return self._measured.memory_bytes.get((job.model, kind), 0)

    def fits(self, kind: str, memory_bytes: int, members: Sequence[Job]) -> bool:
        """Whether measured peaks are within the device's memory, and no two did not fit."""
        if sum(self.memory_bytes(job, kind) for job in members) > memory_bytes:
            return False
        models = sorted(job.model for job in members)
        return not any((kind, pair) in self._measured.too_large for pair in combinations(models, 2))

    def spread(self, job: Job, kind: str, gpus: int) -> float:
        """At least 1: by the largest gang that was measured and is no larger, else the smallest."""
        known = self._spread.get((job.model, kind))
        if not known:
            return 1.0
        return known[max((one for one in known if one <= gpus), default=min(known))]

    def slowdowns(self, kind: str, members: Sequence[tuple[Job, int]]) -> list[float]:
        """At least 1: that a job was measured a little faster beside another is noise."""
        if self._shares == "weights":
            return self._by_weights(kind, members)
        models = tuple(sorted(job.model for job, _ in members))
        known = self._together.get((kind, models))
        if known is None:
            known = self._together[kind, models] = self._beside(kind, models)
        slowdowns = [known[job.model] for job, _ in members]
        if self._shares == "none":
            return slowdowns
        return [
            max(slowdown, self._busy(job.model, kind) * FULL_DEVICE_MILLI / milli)
            for slowdown, (job, milli) in zip(slowdowns, members, strict=True)
        ]

    def _by_weights(self, kind: str, members: Sequence[tuple[Job, int]]) -> list[float]:
        busy = [self._busy(job.model, kind) for job, _ in members]
        weights = [
            milli * URGENT_WEIGHT if job.latency_sensitive else milli for job, milli in members
        ]
        effects = [
            [self._effect(kind, job.model, other.model) for other, _ in members]
            for job, _ in members
        ]
        return [
            max(slowdown, needs / gets) if needs else slowdown
            for slowdown, needs, gets in zip(
                met(effects, weights, self._undivided), busy, divided(busy, weights), strict=True
            )
        ]

    def _effect(self, kind: str, model: str, other: str) -> float:
        """How much slower a model is beside another of equal weight, in parts of its own time.

        Where nobody measured: a step that keeps a part b of a device busy is b of work there and
        1 - b elsewhere; it takes 1 + b b' times as long, by mean value analysis of a closed network
        with a shared processor: who comes finds the other there b' of the time.

        References
        ----------
        Reiser, Lavenberg: Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 1980.
        """
        pair = tuple(sorted((model, other)))
        if (kind, pair) in self._measured.slowdowns:
            return self._beside(kind, pair)[model] - 1.0
        return self._busy(model, kind) * self._busy(other, kind)

    def _busy(self, model: str, kind: str) -> float:
        return self._measured.busy.get((model, kind), 1.0)

    def _beside(self, kind: str, models: tuple[str, ...]) -> dict[str, float]:
        """Slowdown of each model beside all the others."""
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
            found[model] = 1.0 + sum(self._beside(kind, pair)[model] - 1.0 for pair in pairs)
        return found


def met(
    effects: Sequence[Sequence[float]], weights: Sequence[float], undivided: float = 0.0
) -> list[float]:
    """Slowdown of each of several jobs that meet on a device now and then.

    ``effects[i][j]`` is how much slower i is beside j where both weigh the same. Unequal weights
    turn it to the disadvantage of the smaller, but for a part that is ``undivided``; of more than
    two the effects are added. It does not hold where more is wanted than there is.
    """

    def times(own: float, weight: float) -> float:
        return undivided + (1.0 - undivided) * 2 * weight / (own + weight)

    return [
        1.0 + sum(effect * times(own, weight)
                  for j, (effect, weight) in enumerate(zip(of, weights, strict=True)) if j != i)
        for i, (of, own) in enumerate(zip(effects, weights, strict=True))
    ]  # fmt: skip


def divided(wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """What each gets of a device that all want parts of, in proportion to their weights.

    Who wants less than that gets what it wants; the others have the rest in the same proportion.
    """
    given = [0.0] * len(wanted)
    left, hungry = 1.0, set(range(len(wanted)))
    while hungry:
        weight = sum(weights[i] for i in hungry)
        sated = {i for i in hungry if wanted[i] <= left * weights[i] / weight}
        if not sated:
            for i in hungry:
                given[i] = left * weights[i] / weight
            break
        for i in sated:
            given[i] = wanted[i]
        left -= sum(wanted[i] for i in sated)
        hungry -= sated
    return given
