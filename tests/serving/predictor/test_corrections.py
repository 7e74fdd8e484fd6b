"""Corrections of many rows at once equal those of each forecast."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.features.columns.placement_table import placement_table
from presage.features.device.device import Share, catalogue
from presage.features.job.job_description import PRECISIONS
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import STEP_TIME
from presage.models.offsets import terms
from presage.models.offsets.evidence import Evidence, EvidenceSums
from presage.models.offsets.offsets import QuantityOffsets
from presage.models.offsets.random_effects import fit_effects
from presage.models.offsets.spreads import spread_of
from presage.serving.predictor.corrections import Offsets
from presage.serving.predictor.feature_rows import compute_features, feature_rows
from tests.serving.conftest import make_job

KINDS = ("v100-16gb", "a100-40gb")
JOBS = [
    make_job(batch_size=size, precision=precision)
    for size in (1, 2, 3)
    for precision in PRECISIONS[:2]
]
PLACES = [
    Placement(job, catalogue()[kind], Share(share, "mig"))
    for kind in KINDS
    for job in JOBS
    for share in (0.5, 1.0)
]


def described(rows):
    """Return the arguments of the terms and of the cell of each row."""
    return [
        (rows.kinds[device], PRECISIONS[precision], job, bound, share)
        for device, precision, job, bound, share in zip(
            rows.device.tolist(),
            rows.precision.tolist(),
            terms.job_keys(rows.features),
            terms.boundness(rows.features),
            rows.features[:, terms.SHARE_COLUMN].tolist(),
            strict=True,
        )
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(PLACES) - 1), st.floats(-0.5, 0.5)), max_size=12),
    st.lists(st.integers(0, len(PLACES) - 1), min_size=1, max_size=12),
)
def test_rows_are_corrected_as_each_of_them(reported, asked):
    table = placement_table([PLACES[i] for i in asked])
    rows = feature_rows(table, compute_features(table)[0])
    of_all = placement_table(PLACES)
    every = described(feature_rows(of_all, compute_features(of_all)[0]))
    sums = EvidenceSums(1.0)
    for i, error in reported:
        kind, precision, job, bound, share = every[i]
        cell = terms.solo_cell(kind, job, share)
        sums.add(Evidence(cell, terms.solo_terms(kind, precision, job, bound), error))
    spread = spread_of(STEP_TIME)
    known = QuantityOffsets(fit_effects(sums.cells, spread), spread)

    found = Offsets({STEP_TIME.name: known}).solo(rows).get(STEP_TIME.name)

    cells = [terms.solo_cell(kind, job, share) for kind, _, job, _, share in described(rows)]
    single = [
        known.find(terms.solo_terms(kind, precision, job, bound), cell)
        for (kind, precision, job, bound, _), cell in zip(described(rows), cells, strict=True)
    ]
    if found is None:
        assert not any(offset.runs for offset in single)
        return
    assert found.errors.tolist() == [pytest.approx(offset.error) for offset in single]
    assert found.runs.tolist() == [offset.runs for offset in single]
    assert found.sources == [offset.source for offset in single]
    assert found.job_left.tolist() == [known.cell_deviation_left(cell) for cell in cells]
