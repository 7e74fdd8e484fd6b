"""Predictions in this process: a release's ONNX models on ONNX Runtime."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from presage.errors import InvalidJobError, ReleaseError
from presage.features.arrays import Array, FloatMatrix, Ints, Mask
from presage.features.colocation import Colocation
from presage.features.colocation_member import member_matrix
from presage.features.columns.placement_table import placement_table
from presage.features.device.device import (
    Device,
    Share,
    catalogue,
    find_device,
    known_device,
    nearest_kind,
)
from presage.features.device.device_class import COMPUTE_CAPABILITY, DEVICE_CLASSES, device_classes
from presage.features.forecast import Forecast
from presage.features.graph.op_stats import OpStats
from presage.features.job.job import Job, JobFeatures, memory_of_peak
from presage.features.placement import Placement
from presage.models.drift.drift_test import Promises
from presage.models.release.probes import Probes, answers
from presage.models.release.release import PREDICTORS, Release, load_release
from presage.serving.oip.served import ServedModels
from presage.serving.predictor.domain_check import are_colocations_in_domain, contains
from presage.serving.predictor.feature_rows import FeatureRows, compute_features, feature_rows
from presage.serving.predictor.forecasts import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    ReleaseInfo,
)
from presage.serving.predictor.memory_fit import fit_probability
from presage.serving.predictor.onnx_model import OnnxModel
from presage.serving.predictor.quantiles import (
    JOB_QUANTITIES,
    ColocationQuantiles,
    JobQuantiles,
    Quantiles,
    SelectedQuantiles,
    select_quantiles,
)
from presage.serving.predictor.widening import widen, widening_factors
from presage.system.weak_cache import OnceEach

# Below these a prediction cannot be meant.
_LEAST = {
    "compute_utilization": 0.0,
    "memory": 0.0,
    "step_time": 0.0,
    "interference": 1.0,
}
# What another machine's arithmetic may do to an answer.
_ROUNDING, _LEAST_ROUNDING = 1e-3, 1e-6
# Figures below these are as good as none: one is not many times another.
_NEAR_ZERO = {
    "compute_utilization": 0.01, "memory": 1e6, "step_time": 1e-6, "interference": 0.0,
}  # fmt: skip
_MOST_KNOWN = 1024  # forecasts of one job
_SOLO = ("compute_utilization", "memory", "step_time")  # whose medians are a member's SOLO_PROFILE
# By device, share and coverage.
_Known = dict[tuple[int, Share, float], tuple[Device, JobForecast]]


def _nothing_known(_job: JobFeatures) -> _Known:
    return {}


class Predictor:
    """A release, loaded and ready to predict; safe to share between threads.

    Raises
    ------
    ReleaseError
        A model cannot be loaded, or the manifest lacks what predictions need.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self.loaded_at_unix_s = time.time()
        self._median = _median_position(release)
        _check_setup(release)
        # Rows: of jobs at home, of strangers on a processor, of strangers on a GPU.
        self._factors = {
            name: np.array(
                [widening_factors(margins, release.levels)
                 for margins in ({}, *(by_class.get(of, {}) for of in DEVICE_CLASSES))]
            )
            for name, by_class in release.stranger_margins.items()
        }  # fmt: skip
        self._known: OnceEach[JobFeatures, _Known] = OnceEach(_nothing_known)
        self._classes = {name: release.classes(name) for name in PREDICTORS}
        self.models: Mapping[str, OnnxModel] = {
            name: OnnxModel(
                release.model_path(name),
                inputs={"members", "mask"} if name == "interference" else {"features"},
                levels=len(release.levels),
                least=_LEAST[name],
                sha256=release.manifest["predictors"][name]["sha256"],
            )
            for name in PREDICTORS
        }

    @property
    def release_id(self) -> str:
        """Which release predicts."""
        return self._release.release_id

    @property
    def folder(self) -> Path:
        """Where the release lies."""
        return self._release.folder

    @property
    def promises(self) -> Promises:
        """How its forecasts of unseen jobs did, by predictor and slice."""
        return self._release.promises

    @property
    def levels(self) -> tuple[float, ...]:
        """Quantile levels of every prediction, rising."""
        return self._release.levels

    @property
    def schema_hash(self) -> str:
        """Of the feature columns."""
        return str(self._release.manifest["schema_hash"])

    def device(self, kind: str) -> Device:
        """Device of that kind: as measured for the release, else from the catalogue."""
        return find_device(kind, self._release.devices)

    def known_device(self, kind: str) -> Device | None:
        """As :meth:`device`, None where there is none."""
        return known_device(kind, self._release.devices)

    def nearest_kind(self, kind: str) -> str:
        """What to say of a kind that is not known."""
        return nearest_kind(kind, self._release.devices)

    def release(self) -> ReleaseInfo:
        """What predicts."""
        manifest = self._release.manifest
        return ReleaseInfo(
            release_id=self.release_id,
            schema_hash=self.schema_hash,
            columns=self._release.columns,
            op_kinds=tuple(manifest["op_kinds"]),
            levels=self._release.levels,
            devices={**catalogue(), **self._release.devices},
            trained_devices=frozenset().union(*self._release.trained_devices.values()),
            metrics=manifest["metrics"],
            loaded_at_unix_s=self.loaded_at_unix_s,
        )

    @cached_property
    def served_models(self) -> ServedModels:
        """The models themselves, as the Open Inference Protocol shows them."""
        return ServedModels.of(self._release, self.models)

    def select_quantiles(self, coverage: float, levels: Sequence[float] = ()) -> SelectedQuantiles:
        """Which quantiles such a request is answered with; raises InvalidJobError if not."""
        return select_quantiles(self._release, coverage, levels)

    # For callers with values ------------------------------------------------------------------

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """One forecast per placement, in order; each job as if alone on its share."""
        if not placements:
            return []
        if len(placements) == 1:
            return [self._predict_one(placements[0], coverage)]
        return self._predict(placements, coverage)

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """One forecast per co-location, in order; slowdowns in the order of its members."""
        if not colocations:
            return []
        selected = self.select_quantiles(coverage)
        members = [
            Placement(job, colocation.device, share)
            for colocation in colocations
            for job, share in zip(colocation.members, colocation.shares, strict=True)
        ]
        sizes = np.array([len(colocation.members) for colocation in colocations])
        capacities = [colocation.device.memory_bytes for colocation in colocations]
        quantiles = self.colocation_quantiles(_good_rows(members), sizes, capacities)
        slowdowns = self._forecasts(quantiles.slowdowns, "slowdown", selected)
        ends = np.cumsum(sizes).tolist()
        return [
            ColocationForecast(tuple(slowdowns[end - size : end]), fits, probability)
            for end, size, fits, probability in zip(
                ends, sizes.tolist(), quantiles.fits, quantiles.fit_probability, strict=True
            )
        ]

    # For callers with arrays ------------------------------------------------------------------

    def solo_quantiles(self, rows: FeatureRows) -> JobQuantiles:
        """Quantiles of every quantity of jobs alone, by the names in ``JOB_QUANTITIES``."""
        utilization, memory, step = self._alone(rows)
        setup_s = np.array([self._setup_s(kind) for kind in rows.kinds])[rows.device]
        starts_alike = np.array([kind in self._release.setup_s for kind in rows.kinds])
        runtime = Quantiles(
            # Quantile by quantile: start-up and step time are late for the same reasons.
            setup_s + rows.iterations[:, np.newaxis] * step.values,
            step.in_domain & starts_alike[rows.device],
        )
        return dict(zip(JOB_QUANTITIES, (utilization, memory, step, runtime), strict=True))

    def colocation_quantiles(
        self, members: FeatureRows, sizes: Ints, capacities_bytes: Sequence[float]
    ) -> ColocationQuantiles:
        """What members of co-locations, one after another, do to each other.

        Parameters
        ----------
        sizes : ndarray of int, shape (co-locations,)
        capacities_bytes : sequence of int
            Of each co-location's device.
        """
        alone = self._alone(members)
        memory_bytes, step = alone[1].values, alone[2]
        starts = np.cumsum(sizes) - sizes
        # One stranger makes the whole co-location strange: its neighbours feel it.
        alike = np.logical_and.reduceat(step.in_domain, starts)
        kinds = [members.kinds[i] for i in members.device[starts]]
        inside = np.repeat(alike & are_colocations_in_domain(self._release, kinds, sizes), sizes)
        lone = np.repeat(sizes == 1, sizes)  # exactly 1, of a stranger as well
        slowdowns = self._slowdowns(members.features, alone, sizes)
        quantiles = self._widened(
            "interference", slowdowns, inside | lone, _on_gpu(members.features)
        )
        of_each = np.split(memory_bytes, starts[1:])
        return ColocationQuantiles(
            slowdowns=Quantiles(quantiles, inside),
            sizes=sizes.tolist(),
            fits=[
                bool(quantiles[:, self._median].sum() <= capacity)
                for quantiles, capacity in zip(of_each, capacities_bytes, strict=True)
            ],
            fit_probability=[
                fit_probability(quantiles, self._release.levels, capacity_bytes=capacity)
                for quantiles, capacity in zip(of_each, capacities_bytes, strict=True)
            ],
        )

    def check_probes(self) -> None:
        """Ask what the release is known to answer.

        Raises
        ------
        ReleaseError
            It answers something else here.
        """
        probes = self._release.probes
        for name, found in self._answers(probes).items():
            recorded = probes.quantiles[name]
            off = np.abs(found - recorded) > _ROUNDING * np.abs(recorded) + _LEAST_ROUNDING
            if off.any():
                row, level = np.argwhere(off)[0].tolist()
                raise ReleaseError(
                    f"{self._release.model_path(name)}: answers {found[row, level]:g} to probe "
                    f"{row}, and {recorded[row, level]:g} where it was made; this machine's "
                    "ONNX Runtime computes something else: update it, or make the release again"
                )

    def changes(self, before: Predictor) -> dict[str, float]:
        """Of each predictor, the largest factor between medians of this release and of another.

        SelectedQuantiles are the other's probes.
        """
        probes = before._release.probes
        return {
            name: _largest_factor(
                found[:, self._median] + _NEAR_ZERO[name],
                probes.quantiles[name][:, before._median] + _NEAR_ZERO[name],
            )
            for name, found in self._answers(probes).items()
        }

    def _answers(self, probes: Probes) -> dict[str, Array]:
        def run(name: str, inputs: Mapping[str, Any]) -> Array:
            present = inputs["mask"] > 0 if "mask" in inputs else None
            return self.models[name].quantiles(inputs, present)

        return answers(run, probes.features, probes.together, median=self._median)

    def warm_up(self) -> None:
        """Run every model once: a release that cannot predict fails here, not at a caller.

        Raises
        ------
        ReleaseError
            A model fails, or the release's device is one that nothing can be foretold of.
        """
        device = next(iter(self._release.devices.values()), None) or self.device("cpu-1")
        op = OpStats("MatMul", "forward", 4, 1, 4096, 4096, 4096, 1e6, 6e4)
        memory = memory_of_peak(4096, 65536)
        job = JobFeatures(Job("warm-up", "", "", "", "fp32", 1, 1, 64), (op,), 4096, memory)
        try:
            self.predict([Placement(job, device)])
            self.predict_interference([Colocation(device, (job, job), (Share(0.5), Share(0.5)))])
        except InvalidJobError as error:
            raise ReleaseError(f"{self.folder}: {error}; make the release again") from error

    def _predict(self, placements: Sequence[Placement], coverage: float) -> list[JobForecast]:
        selected = self.select_quantiles(coverage)
        quantiles = self.solo_quantiles(_good_rows(placements))
        forecasts = [
            self._forecasts(quantiles[name], unit, selected)
            for name, unit in JOB_QUANTITIES.items()
        ]
        return [JobForecast(*row) for row in zip(*forecasts, strict=True)]

    def _predict_one(self, placement: Placement, coverage: float) -> JobForecast:
        """The same, of a job that may be asked for again, for as long as it is there."""
        known, device = self._known.of(placement.job), placement.device
        where = (id(device), placement.share, coverage)
        found = known.get(where)
        if found is None:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            # With the device, so that its id stands for no other.
            found = known[where] = device, self._predict([placement], coverage)[0]
        return found[1]

    def _setup_s(self, kind: str) -> tuple[float, ...]:
        """Start-up seconds at each level; over all devices where this one was not measured."""
        setup_s = self._release.setup_s
        return setup_s[kind] if kind in setup_s else setup_s[""]

    def _forecasts(
        self, quantiles: Quantiles, unit: str, selected: SelectedQuantiles
    ) -> list[Forecast]:
        """One forecast per row."""
        rows = quantiles.values[:, selected.positions[:3]].tolist()
        return [
            Forecast(median, low, high, unit, inside, self.release_id, selected.coverage)
            for (median, low, high), inside in zip(rows, quantiles.in_domain.tolist(), strict=True)
        ]

    def _alone(self, rows: FeatureRows) -> tuple[Quantiles, Quantiles, Quantiles]:
        """Of utilization, memory and step time."""
        inputs = {"features": rows.features.astype(np.float32, copy=False)}
        inside = contains(self._release, rows)
        on_gpu = _on_gpu(rows.features)
        utilization, memory, step = (
            Quantiles(
                self._widened(name, self.models[name].quantiles(inputs), inside[name], on_gpu),
                inside[name],
            )
            for name in _SOLO
        )
        return utilization, memory, step

    def _widened(self, predictor: str, quantiles: Array, inside: Mask, on_gpu: Mask) -> Array:
        """Intervals of strangers, wider by what the release found them to need."""
        outside = ~inside
        if not np.count_nonzero(outside):
            return quantiles
        factors = self._factors[predictor].take(outside * (1 + on_gpu), axis=0)
        out = widen(quantiles, factors, self._median, odds=predictor == "compute_utilization")
        return np.maximum(out, _LEAST[predictor], out=out)

    def _slowdowns(
        self, features: FloatMatrix, alone: tuple[Quantiles, Quantiles, Quantiles], sizes: Ints
    ) -> Array:
        """Quantiles of shape (members of all co-locations, levels); exactly 1 for a lone job."""
        slowdowns = np.ones_like(alone[2].values)
        if sizes.max() == 1:
            return slowdowns
        classes = device_classes(features)
        known = np.column_stack([np.isin(classes, list(self._classes[name])) for name in _SOLO])
        medians = np.column_stack([quantiles.values[:, self._median] for quantiles in alone])
        rows = member_matrix(features, np.where(known, medians, np.nan)).astype(np.float32)
        # One size after another: members meet each other, and padding would meet them too.
        for size in sorted({*sizes.tolist()} - {1}):
            of_size = np.repeat(sizes == size, sizes)
            members = rows[of_size].reshape(-1, size, rows.shape[1])
            present = np.ones(members.shape[:2], dtype=np.float32)
            slowdowns[of_size] = self.models["interference"].quantiles(
                {"members": members, "mask": present}, present > 0
            )
        return slowdowns


def load_predictor(folder: Path) -> Predictor:
    """Load the release in a folder.

    Raises
    ------
    ReleaseError
        The folder is no release, a file of it is corrupt, or a model cannot be loaded.
    """
    return Predictor(load_release(folder))


def _on_gpu(features: FloatMatrix) -> Mask:
    """Which rows (rows, columns of the full set) are on a GPU, shape (rows,)."""
    on_gpu: Mask = features[:, COMPUTE_CAPABILITY] > 0
    return on_gpu


def _good_rows(placements: Sequence[Placement]) -> FeatureRows:
    table = placement_table(placements)
    features, invalid = compute_features(table)
    if invalid:
        row = min(invalid)
        who, where = placements[row].job.job.job_id, placements[row].device.kind
        raise InvalidJobError(f"job {who!r} on {where!r}: {invalid[row]}")
    return feature_rows(table, features)


def _largest_factor(found: Array, before: Array) -> float:
    """Between two figures, whichever is larger."""
    ratio = found / before
    return float(np.maximum(ratio, 1 / ratio).max(initial=1.0))


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
    """Start-up times: one per level, and some for a device that was not measured."""
    for kind in ("", *release.setup_s):
        values = release.setup_s.get(kind, ())
        in_order = all(0 <= a <= b for a, b in pairwise(values))
        if len(values) != len(release.levels) or not in_order:
            raise ReleaseError(
                f"{release.folder}: setup_s[{kind!r}] is {list(values[:8])}, must be "
                f"{len(release.levels)} seconds that do not fall; train it again"
            )
