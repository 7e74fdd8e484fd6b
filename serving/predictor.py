"""Predictions in this process: a release's ONNX models on ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from presage.features.colocation import Colocation
from presage.features.device import Device, Share, catalogue, find_device
from presage.features.device_class import device_class
from presage.features.errors import InvalidJobError, ReleaseError
from presage.features.forecast import Forecast
from presage.features.job import Job, JobFeatures, memory_of_peak
from presage.features.member import SOLO_PROFILE, member_matrix
from presage.features.op_stats import OpStats
from presage.features.placement import Placement
from presage.features.placement_table import PlacementTable, placement_table
from presage.features.schema import FEATURE_SETS, columns, matrix
from presage.models.release import PREDICTORS, Release
from presage.serving.domain import contains, contains_together
from presage.serving.forecasts import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    ReleaseInfo,
)
from presage.serving.memory_fit import fit_probability
from presage.serving.onnx_model import OnnxModel
from presage.serving.widening import moved_out

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

# Below these a prediction cannot be meant.
_LEAST = {
    "compute_utilization": 0.0,
    "memory": 0.0,
    "step_time": 0.0,
    "interference": 1.0,
}
_SOLO = ("compute_utilization", "memory", "step_time")  # whose medians make a SOLO_PROFILE
_LEAST_FEATURE = np.array(
    [-np.inf if column.log_offset is None else 0.0 for column in FEATURE_SETS["full"]]
)


@dataclass(frozen=True, slots=True)
class _Solo:
    """Placements alone, row by row: features (rows, columns), quantiles (rows, levels).

    ``in_domain`` is by predictor, ``known`` by column of ``SOLO_PROFILE``: whether the predictor
    was ever measured on such devices.
    """

    features: Array
    in_domain: Mapping[str, Mask]
    known: Mask
    compute_utilization: Array
    memory_bytes: Array
    step_time_s: Array


class Predictor:
    """A release, loaded and ready to predict; safe to share between threads.

    Raises
    ------
    ReleaseError
        A model cannot be loaded, or the manifest lacks what predictions need.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self._loaded_at_unix_s = time.time()
        self._median = _median_position(release)
        _check_setup(release)
        self._classes = {name: release.classes(name) for name in PREDICTORS}
        self._models = {
            name: OnnxModel(
                release.model_path(name),
                inputs={"members", "mask"} if name == "interference" else {"features"},
                levels=len(release.levels),
                least=_LEAST[name],
            )
            for name in PREDICTORS
        }

    @property
    def release_id(self) -> str:
        """Which release predicts."""
        return self._release.release_id

    def device(self, kind: str) -> Device:
        """Device of that kind: as measured for the release, else from the catalogue."""
        return find_device(kind, self._release.devices)

    def release(self) -> ReleaseInfo:
        """What predicts."""
        manifest = self._release.manifest
        return ReleaseInfo(
            release_id=self.release_id,
            schema_hash=manifest["schema_hash"],
            columns=self._release.columns,
            op_kinds=tuple(manifest["op_kinds"]),
            levels=self._release.levels,
            devices={**catalogue(), **self._release.devices},
            trained_devices=frozenset().union(*self._release.trained_devices.values()),
            metrics=manifest["metrics"],
            loaded_at_unix_s=self._loaded_at_unix_s,
        )

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """One forecast per placement, in order; each job as if alone on its share."""
        if not placements:
            return []
        ends = self._release.interval_levels(coverage)
        solo = self._solo(placements)
        setup_s = np.array([self._setup_s(p.device.kind) for p in placements])
        iterations = np.array([[p.job.job.iterations] for p in placements], dtype=np.float64)
        starts_alike = np.array([p.device.kind in self._release.setup_s for p in placements])
        inside = solo.in_domain
        quantities = (
            (solo.compute_utilization, "fraction", inside["compute_utilization"]),
            (solo.memory_bytes, "bytes", inside["memory"]),
            (solo.step_time_s, "seconds", inside["step_time"]),
            # Quantile by quantile: start-up and step time are late for the same reasons.
            (
                setup_s + iterations * solo.step_time_s,
                "seconds",
                inside["step_time"] & starts_alike,
            ),
        )
        forecasts = [
            self._forecasts(quantiles, unit, of_quantity, coverage, ends)
            for quantiles, unit, of_quantity in quantities
        ]
        return [JobForecast(*row) for row in zip(*forecasts, strict=True)]

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """One forecast per co-location, in order; slowdowns in the order of its members."""
        if not colocations:
            return []
        ends = self._release.interval_levels(coverage)
        solo = self._solo(
            [
                Placement(job, colocation.device, share)
                for colocation in colocations
                for job, share in zip(colocation.members, colocation.shares, strict=True)
            ]
        )
        sizes = np.array([len(colocation.members) for colocation in colocations])
        starts = np.cumsum(sizes) - sizes
        # One stranger makes the whole co-location strange: its neighbours feel it.
        alike = np.logical_and.reduceat(solo.in_domain["step_time"], starts)
        inside = np.repeat(alike & contains_together(self._release, colocations), sizes)
        alone = np.repeat(sizes == 1, sizes)  # exactly 1, of a stranger as well
        classes = np.repeat([device_class(c.device) for c in colocations], sizes)
        quantiles = self._widened(
            "interference", self._slowdowns(solo, sizes), inside | alone, classes
        )
        slowdowns = self._forecasts(quantiles, "slowdown", inside, coverage, ends)
        return [
            self._colocation_forecast(
                slowdowns[start : start + size],
                solo.memory_bytes[start : start + size],
                colocation.device.memory_bytes,
            )
            for colocation, start, size in zip(
                colocations, starts.tolist(), sizes.tolist(), strict=True
            )
        ]

    def warm_up(self) -> None:
        """Run every model once: a release that cannot predict fails here, not at a caller."""
        device = next(iter(self._release.devices.values()), None) or self.device("cpu-1")
        op = OpStats("MatMul", "forward", 4, 1, 4096, 4096, 4096, 1e6, 6e4)
        memory = memory_of_peak(4096, 65536)
        job = JobFeatures(Job("warm-up", "", "", "", "fp32", 1, 1, 64), (op,), 4096, memory)
        self.predict([Placement(job, device)])
        self.predict_interference([Colocation(device, (job, job), (Share(0.5), Share(0.5)))])

    def _setup_s(self, kind: str) -> tuple[float, ...]:
        """Start-up seconds at each level; over all devices where this one was not measured."""
        setup_s = self._release.setup_s
        return setup_s[kind] if kind in setup_s else setup_s[""]

    def _forecasts(
        self, quantiles: Array, unit: str, in_domain: Mask, coverage: float, ends: tuple[int, int]
    ) -> list[Forecast]:
        """One forecast per row of quantiles, its interval between the levels ``ends``."""
        low, high = ends
        rows = quantiles[:, [low, self._median, high]].tolist()
        return [
            Forecast(median, lowest, highest, unit, inside, self.release_id, coverage)
            for (lowest, median, highest), inside in zip(rows, in_domain.tolist(), strict=True)
        ]

    def _colocation_forecast(
        self, slowdowns: Sequence[Forecast], memory_bytes: Array, capacity_bytes: int
    ) -> ColocationForecast:
        """Of members' slowdowns and their memory quantiles (members, levels)."""
        return ColocationForecast(
            slowdowns=tuple(slowdowns),
            fits=bool(memory_bytes[:, self._median].sum() <= capacity_bytes),
            fit_probability=fit_probability(
                memory_bytes, self._release.levels, capacity_bytes=capacity_bytes
            ),
        )

    def _solo(self, placements: Sequence[Placement]) -> _Solo:
        rows = placement_table(placements)
        features = _features(rows)
        inputs = {"features": features.astype(np.float32)}
        inside = contains(self._release, rows, features)
        classes = np.array([device_class(placement.device) for placement in placements])
        utilization, memory_bytes, step_time_s = (
            self._widened(name, self._models[name].quantiles(inputs), inside[name], classes)
            for name in _SOLO
        )
        known = np.column_stack([np.isin(classes, list(self._classes[name])) for name in _SOLO])
        return _Solo(features, inside, known, utilization, memory_bytes, step_time_s)

    def _widened(
        self, predictor: str, quantiles: Array, inside: Mask, classes: np.ndarray[Any, Any]
    ) -> Array:
        """Intervals of strangers, wider by what the release found them to need."""
        out = quantiles.copy()
        for name, margins in self._release.stranger_margins[predictor].items():
            rows = ~inside & (classes == name)
            wider = moved_out(
                quantiles[rows], margins, self._release.levels,
                odds=predictor == "compute_utilization",
            )  # fmt: skip
            out[rows] = np.maximum(wider, _LEAST[predictor])
        return out

    def _slowdowns(self, solo: _Solo, sizes: np.ndarray[Any, Any]) -> Array:
        """Quantiles of shape (members of all co-locations, levels); exactly 1 for a lone job."""
        slowdowns = np.ones_like(solo.step_time_s)
        crowded = sizes > 1
        if not crowded.any():
            return slowdowns
        together = np.repeat(crowded, sizes)  # (members,): is it in a co-location of several
        medians = [getattr(solo, name)[:, self._median] for name in SOLO_PROFILE]
        profile = np.where(solo.known, np.column_stack(medians), np.nan)
        rows = member_matrix(solo.features, profile)
        # Row-major order of a mask is the order of the members, so it both pads and unpads.
        present = np.arange(sizes.max()) < sizes[crowded][:, np.newaxis]
        members = np.zeros((*present.shape, rows.shape[1]), dtype=np.float32)
        members[present] = rows[together]
        slowdowns[together] = self._models["interference"].quantiles(
            {"members": members, "mask": present.astype(np.float32)}, present
        )
        return slowdowns


def _features(rows: PlacementTable) -> Array:
    """Feature matrix, every number of which the models can take."""
    features = matrix(rows)
    # The models take float32, and logarithms of most columns. Written so that NaN is bad as well.
    good = (features >= _LEAST_FEATURE) & (np.abs(features) <= np.finfo(np.float32).max)
    if not good.all():
        row, column = np.argwhere(~good)[0]
        job_id, kind = rows.jobs.job_ids[rows.job[row]], rows.devices.kinds[rows.device[row]]
        raise InvalidJobError(
            f"job {job_id!r} on {kind!r}: feature {columns('full')[column]!r} is "
            f"{features[row, column]:g}, must be in [{_LEAST_FEATURE[column]:g}, 3.4e38]; "
            "check the job's sizes and the device's data sheet"
        )
    return features


def _median_position(release: Release) -> int:
    """Where the median is among the levels, once sure that they hold the default interval too."""
    try:
        release.interval_levels(DEFAULT_COVERAGE)
        return release.levels.index(0.5)
    except (InvalidJobError, ValueError) as error:
        raise ReleaseError(
            f"{release.folder}: levels {list(release.levels)} hold no median or no "
            f"{DEFAULT_COVERAGE:g} interval; train it again"
        ) from error


def _check_setup(release: Release) -> None:
    """Start-up times: one per level, finite, and some for a device that was not measured."""
    for kind in ("", *release.setup_s):
        values = release.setup_s.get(kind, ())
        in_order = all(0 <= a <= b for a, b in pairwise(values))
        if len(values) != len(release.levels) or not in_order or not np.isfinite(values).all():
            raise ReleaseError(
                f"{release.folder}: setup_s[{kind!r}] is {list(values)}, must be "
                f"{len(release.levels)} finite seconds that do not fall; train it again"
            )
