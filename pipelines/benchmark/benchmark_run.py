"""Run of one benchmark: reads tables, checks rows, fits models, scores forecasts."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from presage.errors import ConfigError, TableError, TrainingError
from presage.models.calibration.error_metrics import interval_metrics, point_metrics
from presage.models.training.fit import LEVELS
from presage.pipelines.benchmark.benchmark_task import Rows, check
from presage.pipelines.benchmark.files import read_tables, refuse_another_source
from presage.pipelines.benchmark.repeats import floor_figures
from presage.pipelines.benchmark.tasks import tasks
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.system.arrays import Array
from presage.system.text.known_names import did_you_mean
from presage.system.text.progress import Progress

Figures = dict[str, float]
SLICES = ("device", "family", "group", "release", "source", "campaign")  # columns of the metadata


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a benchmark, in percent, except ``mae`` in the label's unit.

    ``floor`` has those of repeated measurements; it is empty without any.
    """

    task: str
    split: str
    unit: str
    seed: int
    rows: int
    mlp: Figures
    baselines: Mapping[str, Figures]
    floor: Figures
    seconds: float
    slices: Mapping[str, Mapping[str, Figures]]

    def as_json(self) -> dict[str, Any]:
        """Return the output of ``--json``."""
        return asdict(self)


def run(
    task: str,
    train: Sequence[Path],
    test: Sequence[Path],
    *,
    graphs: GraphCache,
    progress: Progress,
    split: str | None = None,
    seed: int = 0,
) -> Result:
    """Fit on ``train`` and score on ``test``, or on each fold of a split of ``train`` in turn.

    Raises
    ------
    ConfigError
        The task or split is unknown, or both a test table and a split are given.
    TableError
        A file cannot be read; the tables have different columns; a test row is in training, too.
    TrainingError
        There are too few rows, all labels are equal, or a side of the split is empty.
    """
    started = time.monotonic()
    of_name = tasks()
    known = of_name[_check_name("task", task, of_name)]
    if test and split is not None:
        raise ConfigError("use --test or --split, not both: a split divides --train")
    split = "test" if test else _check_name("split", split or known.splits[0], known.splits)
    solo = known.needs_solo_runs
    refuse_another_source(train, test)
    campaigns = read_tables(train, graphs, solo_sources=test if solo else ())
    rows = known.rows(campaigns)
    check(rows, "training")
    if test:
        campaigns = read_tables(test, graphs, solo_sources=train if solo else ())
        requested = known.rows(campaigns)
        if not np.isfinite(requested.measured).any():
            raise TrainingError(
                f"--test: no row can be used for {task}; "
                "docs/pipeline/importing.md lists what each source measured"
            )
        _refuse_known(rows, requested)
        answers = known.forecast(rows, requested, seed=seed, progress=progress)
    else:
        requested = rows
        answers = known.cross_forecast(rows, split, seed=seed, progress=progress)
    ran = np.isfinite(requested.measured)
    measured, quantiles = (
        known.scale * requested.measured[ran],
        known.scale * answers.quantiles[ran],
    )
    return Result(
        task=task, split=split, unit=known.unit, seed=seed, rows=len(ran),
        mlp=_figures(measured, quantiles) | dict(answers.more.get("mlp", {})),
        baselines={
            name: _points(measured, known.scale * guess[ran]) | dict(answers.more.get(name, {}))
            for name, guess in answers.baselines.items()
        },
        floor=floor_figures([known.scale * one for one in known.repeats(campaigns)]),
        seconds=round(time.monotonic() - started, 1),
        slices=_slices(requested.metadata[ran], measured, quantiles),
    )  # fmt: skip


def _figures(y: Array, quantiles: Array) -> Figures:
    """Return figures of the median; coverage and median width of 80 and 90 % intervals."""
    figures = _points(y, quantiles[:, LEVELS.index(0.5)])
    for name, low in (("", LEVELS.index(0.1)), ("_90", LEVELS.index(0.05))):
        found = interval_metrics(y, quantiles[:, low], quantiles[:, len(LEVELS) - 1 - low])
        figures |= {f"{key}{name}": value for key, value in found.items()}
    return figures


def _points(y: Array, predicted: Array) -> Figures:
    figures = point_metrics(y, predicted)
    return {name: value for name, value in figures.items() if name != "rows"}


def _slices(metadata: pd.DataFrame, y: Array, quantiles: Array) -> dict[str, dict[str, Figures]]:
    """Return figures by each of ``SLICES`` that the rows have, the largest errors first."""
    out: dict[str, dict[str, Figures]] = {}
    for name in (name for name in SLICES if name in metadata):
        positions = metadata.groupby(name).indices
        figures = {
            str(key): {"rows": len(at)} | _figures(y[at], quantiles[at])
            for key, at in positions.items()
        }
        out[name] = dict(sorted(figures.items(), key=lambda item: -item[1]["mape"]))
    return out


def _refuse_known(train: Rows, test: Rows) -> None:
    known = set(train.metadata["row"])
    twice = [row for row in test.metadata["row"] if row in known]
    if twice:
        more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
        raise TableError(
            f"{len(twice)} rows of --test are also in --train ({'; '.join(twice[:5])}{more}); "
            "remove them from one of the two"
        )


def _check_name(what: str, name: str, known: Collection[str]) -> str:
    if name in known:
        return name
    raise ConfigError(f"no {what} {name!r}; {did_you_mean(name, known)}")
