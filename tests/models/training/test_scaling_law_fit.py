"""Fit of the scaling law to measured steps on several GPUs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from presage.errors import ReleaseError, TableError, TrainingError
from presage.features.scaling.scaling_law import DEFAULT_LAW
from presage.models.release.release import MANIFEST, load_release
from presage.models.release.release_id import content_id
from presage.models.training.scaling_law_fit import fit_scaling_law, mean_error_percent
from presage.models.training.scaling_rows import ScalingTable, read_scaling_table
from presage.pipelines.pretraining.pretrained_networks import Pretrained
from presage.pipelines.stages.build_release import fit_release_law
from tests.serving.conftest import make_release

SIZES = [(2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (3, 3), (8, 4), (16, 4)]
TRUE = replace(
    DEFAULT_LAW, fixed_s=(2e-3, 2e-3, 2e-3), bytes_per_s=(2e9, 3e8, 5e8), overlap=1.8,
    widest_power=(0.4, 0.2, 0.1),
)  # fmt: skip


def table_of(models: int) -> ScalingTable:
    """Return steps of models that follow a law up to 3 % of noise."""
    rng, parts = np.random.default_rng(0), []
    for i in range(models):
        gpus, nodes = np.array(SIZES * 4, dtype=np.float64).T
        batch = np.repeat([8.0, 16.0, 32.0, 64.0], len(SIZES))
        compute_s, gradient_bytes = 0.004 * (i + 1) * batch, 4e7 * 3.0**i
        steps = TRUE.steps(compute_s, gradient_bytes, gpus, nodes, batch)
        step_s = steps.step_s * np.exp(rng.normal(0, 0.03, len(gpus)))
        names = np.full(len(gpus), f"model {i}", dtype=object)
        parts.append(
            (names, np.full(len(gpus), gradient_bytes), batch, gpus, nodes, compute_s, step_s)
        )
    return ScalingTable(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def test_the_law_of_the_steps_is_found_and_holds_for_another_model():
    table = table_of(4)
    law = fit_scaling_law(table, ["model 3"])

    assert law.models == 3
    assert law.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=0.3)
    assert mean_error_percent(law, table, "model 3") < 6
    assert law.noise < 0.1


def test_too_few_models_are_rejected():
    with pytest.raises(TrainingError, match="needs steps of 3 models"):
        fit_scaling_law(table_of(3), ["model 0"])


def test_a_table_is_read_as_it_was_written():
    table = table_of(2)
    found = read_scaling_table(table.as_frame())

    assert list(found.model) == list(table.model)
    assert found.step_s.tolist() == table.step_s.tolist()
    with pytest.raises(TableError, match="no column 'step_s'"):
        read_scaling_table(table.as_frame().drop(columns="step_s"))


def test_a_release_has_the_law_of_its_tables_or_of_the_fine_tuned_release(tmp_path):
    path = tmp_path / "scaling.parquet"
    table_of(2).as_frame().to_parquet(path)
    assert fit_release_law(path, None) is None

    start = Pretrained(tmp_path, make_release(tmp_path / "release", scaling_law=TRUE))
    assert fit_release_law(path, start) == TRUE

    table_of(3).as_frame().to_parquet(path)
    fitted = fit_release_law(path, start)
    assert fitted is not None
    assert fitted.models == 3


@pytest.mark.parametrize("law", [{}, [], DEFAULT_LAW.as_json() | {"noise": -1.0}])
def test_a_release_with_an_impossible_law_is_rejected(tmp_path, law):
    folder = make_release(tmp_path / "release").folder
    content = json.loads((folder / MANIFEST).read_text()) | {"scaling_law": law}
    content["release_id"] = content_id(content)
    (folder / MANIFEST).write_text(json.dumps(content))

    with pytest.raises(ReleaseError, match=r"scaling_law|scaling law"):
        load_release(folder)
