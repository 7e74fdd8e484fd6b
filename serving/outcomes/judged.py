"""Reported outcomes beside what a release foretells of them."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from presage.errors import PresageError
from presage.features.colocation import Colocation
from presage.features.device.device import Share
from presage.features.forecast import Forecast
from presage.features.job.identity import graph_digest, job_digest, merge_op_stats
from presage.features.job.job import JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.registry import INTERFERENCE, RUNTIME, STEP_TIME
from presage.models.drift.drift_test import Judged
from presage.serving.codec.wire import read_device, read_job, read_share
from presage.serving.codec.wire_outcomes import check_outcome, measured_values
from presage.serving.predictor.forecasts import JobForecast
from presage.serving.predictor.predictor import Predictor
from presage.serving.v1 import prediction_pb2 as pb

Row = TypeVar("Row")
Answer = TypeVar("Answer")
_MOST_ALONE, _MOST_JOBS = 64, 20_000  # step times of a job alone, and jobs, that are remembered


@dataclass(frozen=True, slots=True)
class _Run:
    """An outcome as values."""

    outcome: pb.Outcome
    placement: Placement
    neighbours: tuple[JobFeatures, ...]
    shares: tuple[Share, ...]  # of its job first
    digests: tuple[str, ...]
    slowdown: float | None = None  # of a job with neighbours

    @property
    def colocation(self) -> Colocation:
        """It and its neighbours."""
        members = (self.placement.job, *self.neighbours)
        return Colocation(self.placement.device, members, self.shares)

    @property
    def place(self) -> tuple[str, str, Share]:
        """The same for all runs of a job alone on such a share."""
        return self.digests[0], self.placement.device.kind, self.shares[0]

    @property
    def identity(self) -> str:
        """The same for all runs of a job in such company."""
        others = sorted(zip(self.digests[1:], map(str, self.shares[1:]), strict=True))
        said = json.dumps([*map(str, self.place), others])
        return hashlib.sha256(said.encode()).hexdigest()[:16]


class Judge:
    """Puts outcomes, in the order in which they came, beside forecasts of one release.

    A slowdown is a step beside others over the median step of the same job alone: of a job that
    was never reported alone it cannot be told, and ``missing`` counts those; ``refused`` counts
    outcomes of jobs or devices that cannot be.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.missing = self.refused = 0
        self._alone: dict[tuple[str, str, Share], deque[float]] = {}

    def judged(self, outcomes: Iterable[pb.Outcome]) -> list[list[Judged]]:
        """Of each outcome that can be judged, what it measured; the others are left out."""
        runs = [run for outcome in outcomes if (run := self._run(outcome)) is not None]
        alone = [run.placement for run in runs if run.slowdown is None]
        together = [run.colocation for run in runs if run.slowdown is not None]
        of_alone = iter(self._asked(self.predictor.predict, alone))
        of_together = iter(self._asked(self.predictor.predict_interference, together))
        out = []
        for run in runs:
            if run.slowdown is None:
                found = next(of_alone)
                out.append([] if found is None else _of_alone(run, found))
            else:
                pair = next(of_together)
                one = pair and _judged(
                    run, INTERFERENCE.forecast_field, run.slowdown, pair.slowdowns[0]
                )
                out.append([one] if one else [])
        return [found for found in out if found]

    def _asked(
        self, predict: Callable[[Sequence[Row]], Sequence[Answer]], rows: Sequence[Row]
    ) -> Sequence[Answer | None]:
        """Forecasts of all; of a job that cannot be foretold, which an outsider reported, None."""
        try:
            return predict(rows)
        except PresageError:
            if len(rows) == 1:
                self.refused += 1
                return [None]
        return [found for row in rows for found in self._asked(predict, [row])]

    def _run(self, outcome: pb.Outcome) -> _Run | None:
        if outcome.failure:
            return None
        try:
            run = _read(outcome, self.predictor)
        except PresageError:
            self.refused += 1  # `presage outcomes ingest` says why
            return None
        step_s = outcome.step_time_median_s if outcome.HasField("step_time_median_s") else None
        if not run.neighbours:
            if step_s is not None:
                known = self._alone.pop(run.place, deque(maxlen=_MOST_ALONE))
                known.append(step_s)
                self._alone[run.place] = known
                if len(self._alone) > _MOST_JOBS:
                    del self._alone[next(iter(self._alone))]
            return run
        alone_s = self._alone.get(run.place)
        if step_s is None or not alone_s or median(alone_s) <= 0:
            self.missing += 1
            return None
        return replace(run, slowdown=step_s / median(alone_s))


def _of_alone(run: _Run, forecast: JobForecast) -> list[Judged]:
    measured = measured_values(run.outcome)
    if STEP_TIME.forecast_field in measured:
        # A runtime is judged only where it is the only reported time.
        measured.pop(RUNTIME.forecast_field, None)
    forecasts = forecast.by_field()
    return [
        _judged(run, name, value, forecasts[name])
        for name, value in measured.items()
        if name in forecasts
    ]


def _read(outcome: pb.Outcome, predictor: Predictor) -> _Run:
    check_outcome(outcome, predictor.known_device, "outcome")
    device = read_device(outcome.device, predictor.known_device, "outcome.device")
    of_device = read_share(outcome.device, "outcome.device")
    job = read_job(outcome.job, "outcome.job")
    rows: Sequence[pb.Outcome | pb.Outcome.Neighbour] = (outcome, *outcome.neighbours)
    shares = tuple(
        read_share(row, "outcome") if row.HasField("share") else of_device for row in rows
    )
    neighbours = tuple(read_job(row.job, "outcome.neighbours") for row in outcome.neighbours)
    return _Run(
        outcome,
        Placement(job, device, shares[0]),
        neighbours,
        shares,
        tuple(_digest(one) for one in (job, *neighbours)),
    )


def _digest(features: JobFeatures) -> str:
    return job_digest(features, graph_digest(merge_op_stats(features.op_stats)))


def _judged(run: _Run, quantity: str, measured: float, forecast: Forecast) -> Judged:
    return Judged(
        key=run.outcome.idempotency_key,
        quantity=quantity,
        device_kind=run.placement.device.kind,
        family=run.placement.job.job.family,
        job=run.identity,
        in_domain=forecast.in_domain,
        measured=float(measured),
        low=forecast.low,
        median=forecast.median,
        high=forecast.high,
    )
