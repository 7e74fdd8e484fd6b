"""Application of learned offsets to the quantiles of a release."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from presage.features.forecast import Correction
from presage.features.job.job_description import PRECISIONS
from presage.features.quantities.quantity_registry import INTERFERENCE
from presage.models.offsets import terms
from presage.models.offsets.evidence import Effect, Terms
from presage.models.offsets.offsets import Offset, QuantityOffsets
from presage.serving.predictor.feature_rows import FeatureRows
from presage.system.arrays import Array, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """Offsets of the rows of one quantity.

    Attributes
    ----------
    offsets : sequence of Offset
        One for each row.
    job_left, device_left : ndarray of shape (rows,)
        Deviations of a new job and of a new device that remain, as fractions.
    """

    offsets: Sequence[Offset]
    job_left: Array
    device_left: Array

    @property
    def errors(self) -> Array:
        """Expected errors, shape (rows,)."""
        return np.array([offset.error for offset in self.offsets])

    def described(self) -> list[Correction | None]:
        """Return what each forecast says of its correction; None for a row without one."""
        return [
            Correction(math.exp(offset.error), offset.runs, offset.source) if offset.runs else None
            for offset in self.offsets
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
        shares = rows.features[:, terms.SHARE_COLUMN].tolist()
        jobs = zip(
            rows.device.tolist(), rows.precision.tolist(), terms.job_keys(rows.features),
            terms.boundness(rows.features), shares, strict=True,
        )  # fmt: skip
        places = []
        for device, precision, job, bound, share in jobs:
            kind, name = rows.kinds[device], PRECISIONS[precision]
            parts = terms.solo_terms(kind, name, job, bound)
            places.append((parts, terms.solo_cell(kind, job, share)))
        out = {}
        for name, known in self.by_quantity.items():
            if name != INTERFERENCE.name and (found := _solo(known, places)) is not None:
                out[name] = found
        return out

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
        return _corrections(offsets, job_left, device_left)


def _solo(known: QuantityOffsets, places: Sequence[tuple[Terms, Hashable]]) -> Corrections | None:
    offsets, job_left, device_left = [], [], []
    left_of: dict[Effect, float] = {}  # by the effect of a precision on a device
    for parts, cell in places:
        offsets.append(known.find(parts, cell))
        job_left.append(known.cell_deviation_left(cell))
        (device, _), (precision, _), *_ = parts
        if precision not in left_of:
            left_of[precision] = known.deviation_left((device, precision))
        device_left.append(left_of[precision])
    return _corrections(offsets, job_left, device_left)


def _corrections(
    offsets: Sequence[Offset], job_left: Sequence[float], device_left: Sequence[float]
) -> Corrections | None:
    if not any(offset.runs for offset in offsets):
        return None
    return Corrections(offsets, np.array(job_left), np.array(device_left))
