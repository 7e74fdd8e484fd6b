"""Comparison of reported outcomes with the forecasts of a release."""

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
from presage.features.columns.schema import matrix
from presage.features.device.device import Share
from presage.features.forecast import Forecast
from presage.features.job.identity import graph_digest, job_digest, merge_op_stats
from presage.features.job.job_description import JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import INTERFERENCE, RUNTIME, STEP_TIME
from presage.models.drift.drift_test import JudgedQuantity
from presage.models.offsets.terms import JobKey, boundness, job_keys
from presage.serving.codec.wire_outcomes import check_outcome, measured_values
from presage.serving.codec.wire_values import read_device, read_job, read_share
from presage.serving.predictor.prediction_backend import JobForecast
from presage.serving.predictor.predictor import Predictor
from presage.serving.v1 import prediction_pb2 as pb

Row = TypeVar("Row")
Answer = TypeVar("Answer")
_MAX_SOLO_STEPS, _MAX_JOBS = 64, 20_000  # cached solo step times per job, and cached jobs


@dataclass(frozen=True, slots=True)
class _Run:
    """Parsed outcome."""

    outcome: pb.Outcome
    placement: Placement
    colocated_jobs: tuple[JobFeatures, ...]
    shares: tuple[Share, ...]  # own share first
    digests: tuple[str, ...]
    slowdown: float | None = None  # only of a co-located job

    @property
    def colocation(self) -> Colocation:
        """Return the co-location of the job and its co-located jobs."""
        members = (self.placement.job, *self.colocated_jobs)
        return Colocation(self.placement.device, members, self.shares)

    @property
    def solo_key(self) -> tuple[str, str, Share]:
        """Key shared by all solo runs of the job on such a device and share.

        Without co-located jobs, a time-sliced device is an exclusive one.
        """
        share = self.shares[0]
        if share.mode == "time-slice":
            share = replace(share, mode="exclusive")
        return self.digests[0], self.placement.device.kind, share

    @property
    def identity(self) -> str:
        """Key shared by all runs of the job with such co-located jobs."""
        others = sorted(zip(self.digests[1:], map(str, self.shares[1:]), strict=True))
        text = json.dumps([*map(str, self.solo_key), others])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Outcome whose quantities were compared with forecasts.

    Attributes
    ----------
    key : str
        Idempotency key of the report.
    device_kind, precision, share : str, str, float
        Of the job.
    job : JobKey
    bound : float
        See :func:`presage.models.offsets.terms.boundness`.
    others : tuple of JobKey
        Co-located jobs.
    quantities : sequence of JudgedQuantity
        At least one.
    """

    key: str
    device_kind: str
    precision: str
    share: float
    job: JobKey
    bound: float
    others: tuple[JobKey, ...]
    quantities: Sequence[JudgedQuantity]


class Judge:
    """Comparison of outcomes, in the order of their arrival, with forecasts of one release.

    A slowdown is a co-located step time divided by the median solo step time of the same job.

    Attributes
    ----------
    missing : int
        Co-located outcomes without an earlier solo outcome of the job.
    refused : int
        Outcomes of impossible jobs or devices.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.missing = self.refused = 0
        self._solo_steps_s: dict[tuple[str, str, Share], deque[float]] = {}

    def judge(self, outcomes: Iterable[pb.Outcome]) -> list[Sequence[JudgedQuantity]]:
        """Return the comparisons of each outcome that can be evaluated; skip the others."""
        return [run.quantities for run in self.judge_runs(outcomes)]

    def judge_runs(self, outcomes: Iterable[pb.Outcome]) -> list[JudgedRun]:
        """Return each outcome that can be evaluated, with its comparisons."""
        runs = [run for outcome in outcomes if (run := self._run(outcome)) is not None]
        solo = [run.placement for run in runs if run.slowdown is None]
        colocated = [run.colocation for run in runs if run.slowdown is not None]
        solo_forecasts = iter(self._predict(self.predictor.predict, solo))
        colocated_forecasts = iter(self._predict(self.predictor.predict_interference, colocated))
        out = []
        for run in runs:
            if run.slowdown is None:
                forecast = next(solo_forecasts)
                found = [] if forecast is None else _judge_solo(run, forecast)
            else:
                colocation = next(colocated_forecasts)
                comparison = colocation and _judge(
                    run, INTERFERENCE.forecast_field, run.slowdown, colocation.slowdowns[0]
                )
                found = [comparison] if comparison else []
            if found:
                out.append(_judged_run(run, found))
        return out

    def _predict(
        self, predict: Callable[[Sequence[Row]], Sequence[Answer]], rows: Sequence[Row]
    ) -> Sequence[Answer | None]:
        """Return the forecasts of all rows; None for a job that cannot be predicted."""
        try:
            return predict(rows)
        except PresageError:
            if len(rows) == 1:
                self.refused += 1
                return [None]
        return [forecast for row in rows for forecast in self._predict(predict, [row])]

    def _run(self, outcome: pb.Outcome) -> _Run | None:
        if outcome.failure:
            return None
        try:
            run = _read(outcome, self.predictor)
        except PresageError:
            self.refused += 1  # `presage outcomes ingest` reports the reason
            return None
        step_s = outcome.step_time_median_s if outcome.HasField("step_time_median_s") else None
        if not run.colocated_jobs:
            if step_s is not None:
                steps_s = self._solo_steps_s.pop(run.solo_key, deque(maxlen=_MAX_SOLO_STEPS))
                steps_s.append(step_s)
                self._solo_steps_s[run.solo_key] = steps_s
                if len(self._solo_steps_s) > _MAX_JOBS:
                    del self._solo_steps_s[next(iter(self._solo_steps_s))]
            return run
        solo_s = self._solo_steps_s.get(run.solo_key)
        if step_s is None or not solo_s or median(solo_s) <= 0:
            self.missing += 1
            return None
        return replace(run, slowdown=step_s / median(solo_s))


def _judge_solo(run: _Run, forecast: JobForecast) -> list[JudgedQuantity]:
    measured = measured_values(run.outcome)
    if STEP_TIME.forecast_field in measured:
        # The run time is evaluated only if the step time was not measured.
        measured.pop(RUNTIME.forecast_field, None)
    forecasts = forecast.by_field()
    return [
        _judge(run, name, value, forecasts[name])
        for name, value in measured.items()
        if name in forecasts
    ]


def _read(outcome: pb.Outcome, predictor: Predictor) -> _Run:
    check_outcome(outcome, predictor.known_device, "outcome")
    device = read_device(outcome.device, predictor.known_device, "outcome.device")
    default_share = read_share(outcome.device, "outcome.device")
    job = read_job(outcome.job, "outcome.job")
    rows: Sequence[pb.Outcome | pb.Outcome.ColocatedJob] = (outcome, *outcome.colocated_jobs)
    shares = tuple(
        read_share(row, "outcome") if row.HasField("share") else default_share for row in rows
    )
    colocated_jobs = tuple(
        read_job(row.job, "outcome.colocated_jobs") for row in outcome.colocated_jobs
    )
    return _Run(
        outcome,
        Placement(job, device, shares[0]),
        colocated_jobs,
        shares,
        tuple(_digest(features) for features in (job, *colocated_jobs)),
    )


def _judged_run(run: _Run, quantities: Sequence[JudgedQuantity]) -> JudgedRun:
    device, share = run.placement.device, run.placement.share
    members = [Placement(job, device, share) for job in (run.placement.job, *run.colocated_jobs)]
    features = matrix(members)
    job, *others = job_keys(features)
    return JudgedRun(
        run.outcome.idempotency_key, device.kind, run.placement.job.job.precision, share.fraction,
        job, boundness(features)[0], tuple(others), quantities,
    )  # fmt: skip


def _digest(features: JobFeatures) -> str:
    return job_digest(features, graph_digest(merge_op_stats(features.op_stats)))


def _judge(run: _Run, quantity: str, measured: float, forecast: Forecast) -> JudgedQuantity:
    return JudgedQuantity(
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
