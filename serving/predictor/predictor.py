"""In-process predictor: the ONNX models of a release on ONNX Runtime."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from presage.errors import InvalidJobError, ReleaseError
from presage.features.colocation import Colocation
from presage.features.colocation_member import SOLO_PROFILE, member_matrix
from presage.features.columns.placement_table import placement_table
from presage.features.device.device import (
    Device,
    Share,
    catalogue,
    find_device,
    known_device,
    similar_kinds,
)
from presage.features.device.device_class import COMPUTE_CAPABILITY, device_classes
from presage.features.forecast import Forecast
from presage.features.graph.op_stats import OpStats
from presage.features.job.job_description import Job, JobFeatures, memory_from_peak
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import (
    INTERFERENCE,
    MEMORY,
    QUANTITIES,
    RUNTIME,
    STEP_TIME,
    job_quantities,
)
from presage.features.scaling.scaling_forecast import forecast_scaling, solo_jobs
from presage.features.scaling.scaling_law import DEFAULT_LAW
from presage.features.scaling.scaling_request import ScalingForecasts, ScalingRequest
from presage.models.drift.drift_test import Guarantees
from presage.models.offsets.offsets import move_quantiles
from presage.models.release.probes import Probes, run_probes
from presage.models.release.release import Release, load_release
from presage.serving.oip.served import ServedModels
from presage.serving.predictor.corrections import Offsets
from presage.serving.predictor.domain_check import (
    colocation_codes,
    domain_error_ratios,
    is_in_domain,
    known_ratios,
    novelty_codes,
)
from presage.serving.predictor.feature_rows import FeatureRows, compute_features, feature_rows
from presage.serving.predictor.memory_fit import fit_probability
from presage.serving.predictor.onnx_model import OnnxModel
from presage.serving.predictor.prediction_backend import (
    DEFAULT_COVERAGE,
    ColocationForecast,
    JobForecast,
    ReleaseInfo,
    job_forecasts,
)
from presage.serving.predictor.quantiles import (
    ColocationQuantiles,
    JobQuantiles,
    Quantiles,
    SelectedQuantiles,
    select_quantiles,
)
from presage.serving.predictor.widening import Widening
from presage.system.arrays import Array, FloatMatrix, Ints
from presage.system.weak_cache import WeakCache

# Relative and absolute tolerance for the arithmetic of another machine.
_RTOL, _ATOL = 1e-3, 1e-6
MAX_CACHED = 1024  # forecasts per job
MAX_SELECTIONS = 64  # of quantiles; a release has few intervals and levels
# Key: id of the device, share and coverage.
_CachedForecasts = dict[tuple[int, Share, float], tuple[Device, JobForecast]]


def _empty_cache(_job: JobFeatures) -> _CachedForecasts:
    return {}


class Predictor:
    """Predictor of a loaded release; safe to share between threads.

    Raises
    ------
    ReleaseError
        A model cannot be loaded, or the manifest lacks required values.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self.loaded_at_unix_s = time.time()
        self._median = _median_position(release)
        _check_setup(release)
        self._select_quantiles = lru_cache(MAX_SELECTIONS)(partial(select_quantiles, release))
        self.cache: WeakCache[JobFeatures, _CachedForecasts] = WeakCache(_empty_cache)
        self._offsets: Offsets | None = None
        self._quantities = {name: QUANTITIES[name] for name in release.predictors}
        self._fields = {
            name: quantity
            for name, quantity in job_quantities().items()
            if quantity.name in release.predictors or quantity is RUNTIME
        }
        self._solo_predictors = [
            name for name, one in self._quantities.items() if one.scope == "solo"
        ]
        self._classes = {name: release.classes(name) for name in SOLO_PROFILE}
        self._widening = Widening(release, self._solo_predictors)
        self._slowdown_widening = Widening(release, [INTERFERENCE.name])
        self._error_ratios = np.array(
            [domain_error_ratios(release.guarantees, name) for name in self._solo_predictors]
        )
        self._slowdown_error_ratios = domain_error_ratios(release.guarantees, INTERFERENCE.name)
        self.models: Mapping[str, OnnxModel] = {
            name: OnnxModel(
                release.model_path(name),
                inputs={"features"} if quantity.scope == "solo" else {"members", "mask"},
                levels=len(release.levels),
                least=quantity.minimum,
                sha256=release.manifest["predictors"][name]["sha256"],
            )
            for name, quantity in self._quantities.items()
        }

    def with_offsets(self, offsets: Offsets) -> Predictor:
        """Return a predictor of the same release that adds learned offsets to its forecasts.

        Both share the loaded models.
        """
        corrected = copy.copy(self)
        corrected.cache = WeakCache(_empty_cache)
        corrected._offsets = offsets or None
        return corrected

    @property
    def release_id(self) -> str:
        """Id of the release."""
        return self._release.release_id

    @property
    def folder(self) -> Path:
        """Folder of the release."""
        return self._release.folder

    @property
    def guarantees(self) -> Guarantees:
        """Calibration guarantees on unseen jobs, by predictor and slice."""
        return self._release.guarantees

    @property
    def levels(self) -> tuple[float, ...]:
        """Quantile levels of every prediction, increasing."""
        return self._release.levels

    @property
    def schema_hash(self) -> str:
        """Hash of the feature schema."""
        return str(self._release.manifest["schema_hash"])

    def device(self, kind: str) -> Device:
        """Return the device of that kind, measured for the release or from the catalogue."""
        return find_device(kind, self._release.devices)

    def known_device(self, kind: str) -> Device | None:
        """Return the device of that kind; None if it is unknown."""
        return known_device(kind, self._release.devices)

    def similar_kinds(self, kind: str) -> str:
        """Return the hint for an unknown kind: the nearest known ones."""
        return similar_kinds(kind, self._release.devices)

    def release(self) -> ReleaseInfo:
        """Return the description of the release."""
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
        """Models as the Open Inference Protocol exposes them."""
        return ServedModels.from_release(self._release, self.models)

    def select_quantiles(self, coverage: float, levels: Sequence[float] = ()) -> SelectedQuantiles:
        """Return the quantiles for a request; raise InvalidJobError for unknown ones."""
        return self._select_quantiles(coverage, tuple(levels))

    # Interface with domain values -------------------------------------------------------------

    def predict(
        self, placements: Sequence[Placement], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[JobForecast]:
        """Return one solo forecast per placement, in order."""
        if not placements:
            return []
        if len(placements) == 1:
            return [self._predict_one(placements[0], coverage)]
        return self._predict(placements, coverage)

    def predict_interference(
        self, colocations: Sequence[Colocation], *, coverage: float = DEFAULT_COVERAGE
    ) -> list[ColocationForecast]:
        """Return one forecast per co-location, in order; slowdowns in the order of its members."""
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
        quantiles = self.colocation_quantiles(_valid_rows(members), sizes, capacities)
        slowdowns = self._forecasts(quantiles.slowdowns, INTERFERENCE.unit, selected)
        ends = np.cumsum(sizes).tolist()
        return [
            ColocationForecast(tuple(slowdowns[end - size : end]), fits, probability)
            for end, size, fits, probability in zip(
                ends, sizes.tolist(), quantiles.fits, quantiles.fit_probability, strict=True
            )
        ]

    def predict_scaling(
        self, request: ScalingRequest, *, coverage: float = DEFAULT_COVERAGE
    ) -> ScalingForecasts:
        """Return the forecasts of one job at several numbers of GPUs and nodes.

        The law is that of the release, or the built-in one if the release has none.
        """
        jobs, selected = solo_jobs(request), self.select_quantiles(DEFAULT_COVERAGE)
        rows = _scaled_rows(request.device, jobs.values())
        solo = self._moved(self._solo(rows, novelty_codes(self._release, rows)))
        steps = self._forecasts(solo[STEP_TIME.name], STEP_TIME.unit, selected)
        law = self._release.scaling_law
        return forecast_scaling(
            law or DEFAULT_LAW, request, dict(zip(jobs, steps, strict=True)),
            coverage=coverage, fitted=law is not None,
        )  # fmt: skip

    # Interface with arrays --------------------------------------------------------------------

    def solo_quantiles(self, rows: FeatureRows) -> JobQuantiles:
        """Return the quantiles of all quantities of solo jobs, by forecast field."""
        found = self._moved(self._solo(rows, novelty_codes(self._release, rows)))
        step = found[STEP_TIME.name]
        setup_s = np.array([self._setup_s(kind) for kind in rows.kinds])[rows.device]
        has_setup = np.array([kind in self._release.setup_s for kind in rows.kinds])
        found[RUNTIME.name] = Quantiles(
            # Added per quantile: errors of start-up and step time have the same causes.
            setup_s + rows.iterations[:, np.newaxis] * step.values,
            step.in_domain & has_setup[rows.device],
            step.domain_error_ratio,
            step.corrections,
        )
        return {name: found[quantity.name] for name, quantity in self._fields.items()}

    def colocation_quantiles(
        self, members: FeatureRows, sizes: Ints, capacities_bytes: Sequence[float]
    ) -> ColocationQuantiles:
        """Return the slowdowns and the memory fit of consecutive co-locations.

        Parameters
        ----------
        members : FeatureRows
            Members of all co-locations, one co-location after another.
        sizes : ndarray of int, shape (co-locations,)
            Members of each co-location.
        capacities_bytes : sequence of int
            Memory of each co-location's device.
        """
        novelty = novelty_codes(self._release, members)
        solo = self._solo(members, novelty)
        memory_bytes = self._moved(solo)[MEMORY.name].values
        starts = np.cumsum(sizes) - sizes
        # What is new in one member is new in the co-location: it affects all members.
        codes = np.bitwise_or.reduceat(novelty[STEP_TIME.name], starts)
        kinds = [members.kinds[i] for i in members.device[starts]]
        codes |= colocation_codes(self._release, kinds, sizes)
        codes = np.repeat(codes, sizes)
        inside = is_in_domain(codes)
        is_shared = np.repeat(sizes > 1, sizes)  # the slowdown of a solo job is 1, whatever is new
        # Offsets of slowdowns were learned for forecasts from solo forecasts without offsets.
        slowdowns = self._predict_slowdowns(members.features, solo, sizes)
        classes = _classes(members.features)
        offsets = None if self._offsets is None else self._offsets.slowdowns(members, sizes)
        ratios = known_ratios(self._slowdown_error_ratios, codes, classes)
        [quantiles] = self._slowdown_widening.widened(
            slowdowns[np.newaxis], (codes * is_shared)[np.newaxis], classes, [offsets]
        )
        if offsets is not None:
            quantiles = move_quantiles(quantiles, offsets.errors, INTERFERENCE)
        of_each = np.split(memory_bytes, starts[1:])
        return ColocationQuantiles(
            slowdowns=Quantiles(quantiles, inside, ratios, offsets),
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
        """Compare predictions for the release's probes with the recorded ones.

        Raises
        ------
        ReleaseError
            The predictions differ on this machine.
        """
        probes = self._release.probes
        for name, found in self._predict_probes(probes).items():
            recorded = probes.quantiles[name]
            differs = np.abs(found - recorded) > _RTOL * np.abs(recorded) + _ATOL
            if differs.any():
                row, level = np.argwhere(differs)[0].tolist()
                raise ReleaseError(
                    f"{self._release.model_path(name)}: predicts {found[row, level]:g} for probe "
                    f"{row}, but {recorded[row, level]:g} where it was trained; this machine's "
                    "ONNX Runtime computes other results: update it, or build the release again"
                )

    def changes(self, before: Predictor) -> dict[str, float]:
        """Return by predictor the largest factor between medians of this and another release.

        The medians are those for the probes of the other release. Quantities that only one of the
        releases predicts are left out.
        """
        probes = before._release.probes
        return {
            name: _max_ratio(
                found[:, self._median] + self._quantities[name].negligible,
                probes.quantiles[name][:, before._median] + self._quantities[name].negligible,
            )
            for name, found in self._predict_probes(probes).items()
            if name in probes.quantiles
        }

    def _predict_probes(self, probes: Probes) -> dict[str, Array]:
        def run(name: str, inputs: Mapping[str, Any]) -> Array:
            present = inputs["mask"] > 0 if "mask" in inputs else None
            return self.models[name].quantiles(inputs, present)

        return run_probes(
            run, self.models, probes.features, probes.colocations, median=self._median
        )

    def warm_up(self) -> None:
        """Run every model once, so that a broken release fails before it serves requests.

        Raises
        ------
        ReleaseError
            A model fails, or the release has no usable device.
        """
        device = next(iter(self._release.devices.values()), None) or self.device("cpu-1")
        op = OpStats("MatMul", "forward", 4, 1, 4096, 4096, 4096, 1e6, 6e4)
        memory = memory_from_peak(4096, 65536)
        job = JobFeatures(Job("warm-up", "", "", "", "fp32", 1, 1, 64), (op,), 4096, memory)
        try:
            self.predict([Placement(job, device)])
            self.predict_interference([Colocation(device, (job, job), (Share(0.5), Share(0.5)))])
        except InvalidJobError as error:
            raise ReleaseError(f"{self.folder}: {error}; build the release again") from error

    def _predict(self, placements: Sequence[Placement], coverage: float) -> list[JobForecast]:
        selected = self.select_quantiles(coverage)
        quantiles = self.solo_quantiles(_valid_rows(placements))
        return job_forecasts(
            {
                name: self._forecasts(quantiles[name], quantity.unit, selected)
                for name, quantity in self._fields.items()
            }
        )

    def _predict_one(self, placement: Placement, coverage: float) -> JobForecast:
        """Return a cached forecast of one placement; entries live as long as their job."""
        cached, device = self.cache.get(placement.job), placement.device
        key = (id(device), placement.share, coverage)
        found = cached.get(key)
        if found is None:
            if len(cached) >= MAX_CACHED:
                cached.clear()
            # The entry keeps the device alive, so that its id stays unique.
            found = cached[key] = device, self._predict([placement], coverage)[0]
        return found[1]

    def _setup_s(self, kind: str) -> tuple[float, ...]:
        """Return start-up seconds per level; of all devices for a kind that was not measured."""
        setup_s = self._release.setup_s
        return setup_s[kind] if kind in setup_s else setup_s[""]

    def _forecasts(
        self, quantiles: Quantiles, unit: str, selected: SelectedQuantiles
    ) -> list[Forecast]:
        """Return one forecast per row."""
        rows = quantiles.values.take(selected.positions[:3], axis=1).tolist()
        offsets = quantiles.corrections
        corrections = [None] * len(rows) if offsets is None else offsets.described()
        flags = quantiles.in_domain.tolist()
        ratios = quantiles.domain_error_ratios()
        return [
            Forecast(
                median, low, high, unit, inside, self.release_id, selected.coverage,
                domain_error_ratio=ratio, correction=correction,
            )
            for (median, low, high), inside, ratio, correction in zip(
                rows, flags, ratios, corrections, strict=True
            )
        ]  # fmt: skip

    def _solo(self, rows: FeatureRows, novelty: Mapping[str, Ints]) -> dict[str, Quantiles]:
        """Return the quantiles of the solo quantities, by name; ``novelty`` are their codes.

        Their corrections are not applied yet (:meth:`_moved`).
        """
        inputs = {"features": rows.features.astype(np.float32, copy=False)}
        names, classes = self._solo_predictors, _classes(rows.features)
        known = {} if self._offsets is None else self._offsets.solo(rows)
        offsets = [known.get(name) for name in names]
        # All predictors together: for few rows, calls of numpy are most of the time.
        codes = np.array([novelty[name] for name in names])
        found = np.array([self.models[name].run(inputs) for name in names], dtype=np.float64)
        values = self._widening.widened(found, codes, classes, offsets)
        ratios = known_ratios(self._error_ratios, codes, classes)
        columns = zip(values, is_in_domain(codes), ratios, offsets, strict=True)
        return {name: Quantiles(*one) for name, one in zip(names, columns, strict=True)}

    def _moved(self, solo: dict[str, Quantiles]) -> dict[str, Quantiles]:
        """Return the quantiles with their corrections applied."""
        if self._offsets is None:
            return solo
        return {
            name: one
            if (known := one.corrections) is None
            else replace(
                one, values=move_quantiles(one.values, known.errors, self._quantities[name])
            )
            for name, one in solo.items()
        }

    def _predict_slowdowns(
        self, features: FloatMatrix, solo: Mapping[str, Quantiles], sizes: Ints
    ) -> Array:
        """Return quantiles of shape (members of all co-locations, levels); 1 for single jobs."""
        slowdowns = np.ones_like(solo[STEP_TIME.name].values)
        if sizes.max() == 1:
            return slowdowns
        classes = device_classes(features)
        profile = {
            name: np.where(
                np.isin(classes, list(learnt)), solo[name].values[:, self._median], np.nan
            )
            for name, learnt in self._classes.items()
        }
        rows = member_matrix(features, profile).astype(np.float32)
        # One size at a time, because padding would take part in the interference.
        for size in sorted({*sizes.tolist()} - {1}):
            of_size = np.repeat(sizes == size, sizes)
            members = rows[of_size].reshape(-1, size, rows.shape[1])
            present = np.ones(members.shape[:2], dtype=np.float32)
            slowdowns[of_size] = self.models[INTERFERENCE.name].quantiles(
                {"members": members, "mask": present}, present > 0
            )
        return slowdowns


def load_predictor(folder: Path) -> Predictor:
    """Load the release in a folder.

    Raises
    ------
    ReleaseError
        The folder is not a release, a file is corrupt, or a model cannot be loaded.
    """
    return Predictor(load_release(folder))


def _classes(features: FloatMatrix) -> Ints:
    """Return positions in ``DEVICE_CLASSES`` of rows (rows, columns of the full set)."""
    classes: Ints = (features[:, COMPUTE_CAPABILITY] > 0).astype(np.intp)
    return classes


def _scaled_rows(device: Device, jobs: Iterable[JobFeatures]) -> FeatureRows:
    """Return the rows of one job with several batch sizes; errors do not name it."""
    table = placement_table([Placement(job, device) for job in jobs])
    features, invalid = compute_features(table)
    if invalid:
        raise InvalidJobError(f"job: with the batch size of a placement, {invalid[min(invalid)]}")
    return feature_rows(table, features)


def _valid_rows(placements: Sequence[Placement]) -> FeatureRows:
    table = placement_table(placements)
    features, invalid = compute_features(table)
    if invalid:
        row = min(invalid)
        job_id, kind = placements[row].job.job.job_id, placements[row].device.kind
        raise InvalidJobError(f"job {job_id!r} on {kind!r}: {invalid[row]}")
    return feature_rows(table, features)


def _max_ratio(found: Array, before: Array) -> float:
    """Return the largest ratio between two arrays, in either direction."""
    ratio = found / before
    return float(np.maximum(ratio, 1 / ratio).max(initial=1.0))


def _median_position(release: Release) -> int:
    """Return the position of the median; raise ReleaseError without it or the default interval."""
    try:
        release.interval_levels(DEFAULT_COVERAGE)
        return release.levels.index(0.5)
    except (InvalidJobError, ValueError) as error:
        raise ReleaseError(
            f"{release.folder}: levels {list(release.levels)} contain no median or no "
            f"{DEFAULT_COVERAGE:g} interval; train it again"
        ) from error


def _check_setup(release: Release) -> None:
    """Check that start-up times have one value per level and a default for unknown devices."""
    for kind in ("", *release.setup_s):
        values = release.setup_s.get(kind, ())
        in_order = all(0 <= a <= b for a, b in pairwise(values))
        if len(values) != len(release.levels) or not in_order:
            raise ReleaseError(
                f"{release.folder}: setup_s[{kind!r}] is {list(values[:8])}, must be "
                f"{len(release.levels)} non-decreasing numbers of seconds; train it again"
            )
