"""Application of learned offsets to the quantiles of a release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from presage.features.forecast import JOB, JOB_ON_DEVICE, Correction
from presage.features.job.job_description import PRECISIONS
from presage.features.quantities.quantity_registry import INTERFERENCE
from presage.models.offsets import terms
from presage.models.offsets.offsets import QuantityOffsets
from presage.serving.predictor.feature_rows import FeatureRows
from presage.system.arrays import Array, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """Offsets of the rows of one quantity, each of shape (rows,).

    Attributes
    ----------
    errors : ndarray
        Expected errors, as :func:`presage.models.offsets.offsets.forecast_error`.
    runs : ndarray of int
        Outcomes that each was learned from; 0 without a correction.
    sources : sequence of str
        What these outcomes have in common with the forecast, of ``CORRECTION_SOURCES``, or "".
    job_left, device_left : ndarray
        Deviations of a new job and of a new device that remain, as fractions.
    """

    errors: Array
    runs: Ints
    sources: Sequence[str]
    job_left: Array
    device_left: Array

    def described(self) -> list[Correction | None]:
        """Return what each forecast says of its correction; None for a row without one."""
        factors = np.exp(self.errors).tolist()
        return [
            Correction(factor, runs, source) if runs else None
            for factor, runs, source in zip(factors, self.runs.tolist(), self.sources, strict=True)
        ]


class Offsets:
    """Offsets of all quantities; immutable.

    Attributes
    ----------
    by_quantity : mapping of str to QuantityOffsets
        By the names of predictors.
    """

    def __init__(self, by_quantity: Mapping[str, QuantityOffsets]) -> None:
        self.by_quantity = by_quantity

    def __bool__(self) -> bool:
        return bool(self.by_quantity)

    def solo(self, rows: FeatureRows) -> dict[str, Corrections]:
        """Return the corrections of solo jobs, of quantities with an offset for any row."""
        number = len(PRECISIONS)
        at, place = np.unique(rows.device * number + rows.precision, return_inverse=True)
        solo = _SoloRows(
            [
                (rows.kinds[i // len(PRECISIONS)], PRECISIONS[i % len(PRECISIONS)])
                for i in at.tolist()
            ],
            place,
            terms.job_keys(rows.features),
            np.array(terms.boundness(rows.features)),
            rows.features[:, terms.SHARE_COLUMN].tolist(),
        )
        found = {
            name: _correct_solo(known, solo)
            for name, known in self.by_quantity.items()
            if name != INTERFERENCE.name
        }
        return {name: one for name, one in found.items() if one is not None}

    def slowdowns(self, members: FeatureRows, sizes: Ints) -> Corrections | None:
        """Return the corrections of the members of consecutive co-locations; None without any."""
        known = self.by_quantity.get(INTERFERENCE.name)
        if known is None:
            return None
        keys = terms.job_keys(members.features)
        kinds = [members.kinds[i] for i in members.device.tolist()]
        offsets, job_left, device_left, begin = [], [], [], 0
        for size in sizes.tolist():
            together = keys[begin : begin + size]
            for i, job in enumerate(together):
                others, kind = together[:i] + together[i + 1 :], kinds[begin + i]
                cell = terms.pair_cell(kind, job, others)
                parts = terms.pair_terms(kind, job, others)
                is_shared = size > 1
                offsets.append(known.find(parts if is_shared else (), cell))
                job_left.append(known.cell_deviation_left(cell))
                device_left.append(known.deviation_left([parts[0][0]]))
            begin += size
        if not any(offset.runs for offset in offsets):
            return None
        return Corrections(
            np.array([offset.error for offset in offsets]),
            np.array([offset.runs for offset in offsets]),
            [offset.source for offset in offsets],
            np.array(job_left),
            np.array(device_left),
        )


@dataclass(frozen=True, slots=True)
class _SoloRows:
    """Solo jobs on devices.

    Attributes
    ----------
    places : sequence of (str, str)
        Distinct kinds of devices with precisions.
    place : ndarray of int, shape (rows,)
        Position of each row's.
    jobs, bounds, shares
        Key, boundness and share of each row.
    """

    places: Sequence[tuple[str, str]]
    place: Ints
    jobs: Sequence[terms.JobKey]
    bounds: Array
    shares: Sequence[float]


def _correct_solo(known: QuantityOffsets, rows: _SoloRows) -> Corrections | None:
    """Return the corrections of solo jobs; None without any.

    Equal to ``known.find`` of every row. Most rows share the effects of a few devices, so a row
    costs two look-ups, and more only if outcomes of its job were reported.
    """
    fitted, shared, bound_effects, device_left = known.fitted, [], [], []
    for kind, precision in rows.places:
        parts = terms.shared_terms(kind, precision, 0.0)
        (device, _), (of_precision, _), (bound, _) = parts
        shared.append(known.find(parts, None))
        bound_effects.append(fitted.effects.get(bound, 0.0))
        device_left.append(known.deviation_left((device, of_precision)))
    at = rows.place.tolist()
    errors = [shared[place].error for place in at]
    runs = [shared[place].runs for place in at]
    sources = [shared[place].source for place in at]
    job_left = [1.0] * len(at)
    bound_errors = np.array(bound_effects)[rows.place] * rows.bounds
    for i, job in enumerate(rows.jobs):
        if job not in known.jobs:
            continue
        effect = (terms.JOB, job)
        errors[i] += fitted.effects.get(effect, 0.0)
        if (of_job := fitted.runs.get(effect, 0)) > runs[i]:
            runs[i], sources[i] = of_job, JOB
        cell = terms.solo_cell(rows.places[at[i]][0], job, rows.shares[i])
        if cell in fitted.cells:
            errors[i] += fitted.cells[cell]
            runs[i], sources[i] = fitted.cell_runs[cell], JOB_ON_DEVICE
            job_left[i] = known.cell_deviation_left(cell)
    if not any(runs):
        return None
    left = np.array(device_left)[rows.place]
    return Corrections(
        np.array(errors) + bound_errors, np.array(runs), sources, np.array(job_left), left
    )
