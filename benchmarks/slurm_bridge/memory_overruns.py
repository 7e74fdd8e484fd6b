"""Jobs whose measured peak memory exceeds what the bridge sets at a stated risk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.forecast_worth.runs import KIND, SHIPPED, measured_tables
from benchmarks.predictors.cross_fitted import FOLDS, fold_of
from presage.features.device.device import Device
from presage.models.release.release import load_release
from presage.schedulers.slurm.bridge.decide import MIB, DecisionOptions, decide
from presage.schedulers.slurm.bridge.job_forecasts import JobForecasts
from presage.schedulers.slurm.bridge.submission import Submission
from presage.serving.predictor.prediction_backend import JobForecast
from presage.serving.predictor.predictor import Predictor

RISKS = (0.05, 0.1, 0.5)
SHARDS_PER_GPU = 10
_SHARED = Submission(own_minutes=600, gpus="gres:gpu:1", options=frozenset({"share"}))
_ON_HOST = Submission(own_minutes=600)


@dataclass(frozen=True, slots=True)
class Overruns:
    """Requests that the bridge sets, and how many are exceeded.

    Attributes
    ----------
    jobs, in_domain : int
        Jobs with a measured peak, and those whose forecasts are in domain.
    memory_exceeded : int
        Jobs of ``in_domain`` whose peak exceeds ``--mem``, in whole MiB.
    sharded, shards_exceeded : int
        Jobs of ``in_domain`` that get shards instead of a GPU, and those whose peak exceeds the
        memory of their shards.
    all_exceeded, all_sharded, all_shards_exceeded : int
        The same of all jobs, if forecasts out of domain were used as well.
    """

    forecasts: str
    risk: float
    jobs: int
    in_domain: int
    memory_exceeded: int
    sharded: int
    shards_exceeded: int
    all_exceeded: int
    all_sharded: int
    all_shards_exceeded: int


def count_overruns(lucid: Path, releases: Path) -> Iterator[Overruns]:
    """Yield the counts of each source of forecasts and risk.

    ``releases`` has the releases of :mod:`benchmarks.predictors.cross_fitted`; without them only
    the shipped release is counted. Neither is trained on the family of a job that it predicts.
    """
    shipped = Predictor(load_release(SHIPPED))
    sources: dict[str, list[Predictor]] = {"shipped": [shipped] * FOLDS}
    folders = [releases / f"{fold}" / "release" for fold in range(FOLDS)]
    if all(folder.is_dir() for folder in folders):
        sources["retrained"] = [Predictor(load_release(folder)) for folder in folders]
    for name, predictors in sources.items():
        for risk in RISKS:
            yield _count(name, risk, predictors, lucid)


def _count(name: str, risk: float, predictors: list[Predictor], lucid: Path) -> Overruns:
    tables = measured_tables(lucid)
    fold = fold_of([one.job.family for one in tables.features.values()])
    options = DecisionOptions(risk=risk, shards_per_gpu=SHARDS_PER_GPU)
    of = [JobForecasts(predictor, options) for predictor in predictors]
    counts = {"known": [0] * 4, "all": [0] * 4}
    for (model, kind), peak_bytes in tables.memory_bytes.items():
        if kind != KIND:
            continue
        features = tables.features[model]
        source = of[fold[features.job.family]]
        device = source.device(KIND)
        forecast = source.forecast(features, device, 1, 1)
        found = _exceeded(forecast, device, options, peak_bytes)
        counts["all"] = _sum(counts["all"], found)
        if forecast.memory_bytes.in_domain:
            counts["known"] = _sum(counts["known"], found)
    in_domain, exceeded, sharded, shards_exceeded = counts["known"]
    jobs, all_exceeded, all_sharded, all_shards_exceeded = counts["all"]
    return Overruns(
        name, risk, jobs, in_domain, exceeded, sharded, shards_exceeded,
        all_exceeded, all_sharded, all_shards_exceeded,
    )  # fmt: skip


def _exceeded(
    forecast: JobForecast, device: Device, options: DecisionOptions, peak_bytes: int
) -> list[int]:
    """Return 1, and whether ``--mem`` is exceeded, shards are set, and theirs is exceeded."""
    forecast = replace(
        forecast,
        memory_bytes=replace(forecast.memory_bytes, in_domain=True),
        compute_utilization=replace(forecast.compute_utilization, in_domain=True),
    )
    memory_mib = decide(_ON_HOST, forecast, device, "", options).memory_mib
    shards = decide(_SHARED, forecast, device, "", options).shards
    assert memory_mib is not None
    allowed_bytes = (shards or SHARDS_PER_GPU) / SHARDS_PER_GPU * device.memory_bytes
    is_over = shards is not None and peak_bytes > allowed_bytes
    return [1, peak_bytes > memory_mib * MIB, shards is not None, is_over]


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
