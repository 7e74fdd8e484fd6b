"""Scoring of a release on the held-out jobs, on which no release is trained.

The ONNX files are run as in serving, so faults of the export count too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pandas as pd

from presage.errors import ReleaseError, TableError, TrainingError
from presage.features.colocation_member import SOLO_PROFILE, member_matrix
from presage.features.job.job_table import precision_codes
from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES
from presage.models.gate.holdout_forecasts import (
    HoldoutForecasts,
    Interval,
    ScoredRelease,
)
from presage.models.release.release import MANIFEST, Release
from presage.models.training.solo_rows import find_solo_rows
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.system.arrays import Array, Mask

Inputs = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]

COVERAGES = (0.8, 0.9)

_WARM_UP, _BLOCKS, _CALLS = 20, 5, 40


def score_release(
    release: Release, solo: pd.DataFrame, interference: pd.DataFrame
) -> ScoredRelease:
    """Run the predictors of a release on the rows of the held-out jobs.

    Parameters
    ----------
    release : Release
    solo : DataFrame
        One row per solo measurement: keys, targets, ``full.*`` features in raw units.
    interference : DataFrame
        One row per member of a co-location, with its ``slowdown``.

    Raises
    ------
    TrainingError
        The predictor of a required quantity has no held-out rows.
    TableError
        A member of a co-location has no solo measurement.
    ReleaseError
        A model cannot be run, or its output violates the contract of
        :mod:`presage.models.release.release`.
    """
    models = {name: _OnnxModel(release, name) for name in release.predictors}
    unscored = frozenset(
        name
        for name in models
        if QUANTITIES[name].is_optional and _held_out(solo, QUANTITIES[name].column).empty
    )
    held_out = {
        name: _score_solo(release, model, solo)
        for name, model in models.items()
        if QUANTITIES[name].scope == "solo" and name not in unscored
    }
    held_out[INTERFERENCE.name] = _score_interference(release, models, solo, interference)
    files = [release.folder / MANIFEST, *map(release.model_path, models)]
    size_bytes = sum(path.stat().st_size for path in files)
    return ScoredRelease(held_out, size_bytes, release.trained_on, unscored)


class _OnnxModel:
    """ONNX file of one predictor, run on one thread."""

    def __init__(self, release: Release, predictor: str) -> None:
        self.predictor = predictor
        self._path, self._levels = release.model_path(predictor), len(release.levels)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session: Any = ort.InferenceSession(
                str(self._path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own exceptions have no common base
            raise self._fault(f"cannot be loaded ({error})") from error

    def quantiles(self, inputs: Inputs) -> Array:
        """Return validated quantiles of shape (..., levels)."""
        try:
            quantiles: Array = self._session.run(["quantiles"], inputs)[0].astype(np.float64)
        except Exception as error:  # as above
            raise self._fault(f"fails on the held-out jobs ({error})") from error
        if quantiles.shape[-1] != self._levels or not np.isfinite(quantiles).all():
            raise self._fault(
                f"must return {self._levels} finite quantiles, shape {quantiles.shape}"
            )
        if (np.diff(quantiles, axis=-1) < 0).any():
            raise self._fault("returns quantiles that cross")
        return quantiles

    def latency_us(self, inputs: Inputs) -> float:
        """Return the median microseconds of a call, as the minimum over several blocks of calls.

        The minimum excludes blocks that another process disturbed.
        """
        for _ in range(_WARM_UP):
            self._session.run(["quantiles"], inputs)
        medians = []
        for _ in range(_BLOCKS):
            elapsed_ns = []
            for _ in range(_CALLS):
                start_ns = time.perf_counter_ns()
                self._session.run(["quantiles"], inputs)
                elapsed_ns.append(time.perf_counter_ns() - start_ns)
            medians.append(float(np.median(elapsed_ns)))
        return min(medians) / 1000

    def _fault(self, what: str) -> ReleaseError:
        first_line = what.splitlines()[0]
        return ReleaseError(f"{self._path}: {first_line}; train it again with this version")


def _held_out(solo: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows of held-out jobs with a measurement in a column."""
    measured = solo[solo[column].notna()] if column in solo else solo.head(0)
    rows: pd.DataFrame = measured[job_folds(list(measured["job_id"])) == HELD_OUT_FOLD]
    return rows


def _score_solo(release: Release, model: _OnnxModel, solo: pd.DataFrame) -> HoldoutForecasts:
    column = QUANTITIES[model.predictor].column
    held_out = _held_out(solo, column)
    if held_out.empty:
        measured = int(solo[column].notna().sum())
        raise TrainingError(
            f"none of {measured} measured jobs is held out to evaluate {model.predictor}; "
            "measure more with `presage profile`"
        )
    features = _feature_rows(release, held_out)
    return _make_forecasts(
        release,
        held_out,
        held_out[column].to_numpy(np.float64),
        model.quantiles({"features": features}),
        _is_in_domain(release, model.predictor, held_out, held_out),
        model.latency_us({"features": features[:1]}),
    )


def _score_interference(
    release: Release,
    models: Mapping[str, _OnnxModel],
    solo: pd.DataFrame,
    interference: pd.DataFrame,
) -> HoldoutForecasts:
    """Score the victims whose job is held out; their co-runners may be training jobs."""
    rows = _holdout_colocations(interference)
    groups = rows.groupby("colocation", sort=True)
    where, slot = groups.ngroup().to_numpy(), groups.cumcount().to_numpy()
    solo_rows = _find_solo_rows(solo, rows)
    columns = _member_columns(release, models, solo_rows)
    shape = (int(where.max()) + 1, int(slot.max()) + 1)
    members, mask = np.zeros((*shape, columns.shape[1]), np.float32), np.zeros(shape, np.float32)
    members[where, slot], mask[where, slot] = columns, 1

    model = models[INTERFERENCE.name]
    quantiles = model.quantiles({"members": members, "mask": mask})[where, slot]
    victims = _is_holdout_victim(rows)
    first = int((where == 0).sum())  # the first co-location without padding
    # One out-of-domain member makes the whole co-location so, as do too many members.
    in_domain = _is_in_domain(release, model.predictor, rows, solo_rows)
    in_domain = pd.Series(in_domain).groupby(where).transform("all").to_numpy(bool)
    most = solo_rows["device_class"].map(release.max_members).fillna(1).to_numpy()
    in_domain = in_domain & (rows["members"].to_numpy() <= most)
    return _make_forecasts(
        release,
        rows[victims],
        rows["slowdown"].to_numpy(np.float64)[victims],
        quantiles[victims],
        in_domain[victims],
        model.latency_us({"members": members[:1, :first], "mask": mask[:1, :first]}),
    )


def _holdout_colocations(interference: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of co-locations with a held-out victim, sorted."""
    is_victim = _is_holdout_victim(interference)
    is_used = interference["colocation"].isin(interference["colocation"][is_victim])
    if not is_used.any():
        raise TrainingError(
            f"no victim in {interference['colocation'].nunique()} co-locations is held out to "
            "evaluate interference; measure more with `presage profile`"
        )
    rows: pd.DataFrame = interference[is_used].sort_values(["colocation", "member"])
    return rows


def _is_holdout_victim(rows: pd.DataFrame) -> Mask:
    """Return whether each member is held out and has a measured slowdown."""
    is_measured = rows["slowdown"].notna().to_numpy(bool)
    is_victim: Mask = is_measured & (job_folds(list(rows["job_id"])) == HELD_OUT_FOLD)
    return is_victim


def _find_solo_rows(solo: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the solo row of each member, in the members' order."""
    positions = find_solo_rows(solo, rows)
    if (positions < 0).any():
        missing = rows.iloc[int(np.argmax(positions < 0))]
        raise TableError(
            f"co-location {missing['colocation']!r}: member {missing['job_id']!r} has no solo "
            f"measurement on {missing['machine']!r}; run `dvc repro featurize`"
        )
    return solo.iloc[positions]


def _member_columns(
    release: Release, models: Mapping[str, _OnnxModel], solo_rows: pd.DataFrame
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the inputs of the interference model: features and the release's solo medians."""
    features, median = _feature_rows(release, solo_rows), release.levels.index(0.5)
    profile = {}
    for name in SOLO_PROFILE:
        known = solo_rows["device_class"].isin(release.classes(name)).to_numpy(bool)
        medians = models[name].quantiles({"features": features})[:, median]
        profile[name] = np.where(known, medians, np.nan)
    return member_matrix(features.astype(np.float64), profile).astype(np.float32)


def _feature_rows(release: Release, rows: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return raw features of shape (rows, columns), in the release's order."""
    return rows[[f"full.{name}" for name in release.columns]].to_numpy(np.float32)


def _is_in_domain(
    release: Release, predictor: str, rows: pd.DataFrame, solo_rows: pd.DataFrame
) -> Mask:
    """Return whether each row's job, by its solo row, and device are in a predictor's domain."""
    precisions = precision_codes(solo_rows["precision"])
    is_similar = release.contains(_feature_rows(release, solo_rows).astype(np.float64), precisions)
    is_known: Mask = rows["device_kind"].isin(release.trained_devices[predictor]).to_numpy(bool)
    return is_known & is_similar


def _make_forecasts(
    release: Release,
    rows: pd.DataFrame,
    measured: Array,
    quantiles: Array,
    in_domain: Mask,
    latency_us: float,
) -> HoldoutForecasts:
    ends = {coverage: release.interval_levels(coverage) for coverage in COVERAGES}
    return HoldoutForecasts(
        jobs=rows["job_id"].to_numpy(object),
        families=rows["family"].to_numpy(object),
        devices=rows["device_kind"].to_numpy(object),
        measured=measured,
        median=quantiles[:, release.levels.index(0.5)],
        intervals={c: Interval(quantiles[:, a], quantiles[:, b]) for c, (a, b) in ends.items()},
        in_domain=in_domain,
        latency_us=latency_us,
    )
