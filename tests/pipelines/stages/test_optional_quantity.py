"""Power, which no processor measures: the stages work without a row, and train it with rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from presage.errors import TableError, TrainingError
from presage.features.quantities.quantity_registry import MEMORY, POWER, QUANTITIES
from presage.models.training.fit import FitConfig
from presage.pipelines.evaluation.plots import pictures
from presage.pipelines.stages import evaluate, featurize, train
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from presage.pipelines.trained_quantities import UNTRAINED, trained_quantities
from tests.pipelines.conftest import required_solo_quantities, without_onnx
from tests.pipelines.evaluation.forecast_examples import forecasts, metrics_of
from tests.support.small_campaign import small_campaign

TINY = FitConfig(hidden=8, steps=10, learning_rate=0.02, weight_decay=0.0, ensemble=1, seed=0)
SETTINGS = Settings(TINY, TINY, 10**6, FineTuning(5, 0.01, pull=300.0, batch=32))


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of a campaign on a processor."""
    root = tmp_path_factory.mktemp("processor")
    featurize.featurize([small_campaign(root / "cpu-2", ("gnn", "mlp", "vgg"))], root / "features")
    return root / "features"


@pytest.fixture
def run(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the stage of a predictor in a folder; ``watts`` are put into the rows first."""
    monkeypatch.setattr(train, "read_settings", lambda _: SETTINGS)

    def stage(name: str, **columns: float) -> Path:
        at = tmp_path / "features"
        shutil.copytree(features, at, dirs_exist_ok=True)
        solo = pd.read_parquet(at / "solo.parquet").assign(**columns)
        solo.to_parquet(at / "solo.parquet")
        target = tmp_path / "models" / name
        with without_onnx():
            train.main([name, "--features", str(at), "--target", str(target)])
        return target

    return stage


def test_without_rows_the_stage_says_why_there_is_no_model(run, capsys):
    folder = run(POWER.name)

    assert [path.name for path in folder.iterdir()] == [UNTRAINED]
    reason = json.loads((folder / UNTRAINED).read_text())["reason"]
    assert reason.startswith("0 of ")
    assert f"power is not predicted: {reason}" in capsys.readouterr().err


def test_rows_that_come_later_train_it_and_rows_that_go_untrain_it(run):
    run(POWER.name)
    folder = run(POWER.name, power_w=300.0)

    assert (folder / "forecasts.parquet").is_file()
    assert not (folder / UNTRAINED).exists()
    assert POWER.name in trained_quantities(folder.parent)

    run(POWER.name)
    assert [path.name for path in folder.iterdir()] == [UNTRAINED]
    assert POWER.name not in trained_quantities(folder.parent)


def test_a_required_quantity_without_rows_is_an_error(run):
    with pytest.raises(TrainingError, match="too few for training"):
        run(MEMORY.name, memory_peak_bytes=np.nan)


def test_a_required_quantity_counts_as_trained_so_that_a_missing_file_is_an_error(tmp_path):
    assert set(trained_quantities(tmp_path)) == {*required_solo_quantities(), "interference"}
    with pytest.raises(TableError, match="compute_utilization"):
        evaluate.read_forecasts(tmp_path)


def test_an_evaluation_has_an_empty_plot_table_of_an_untrained_quantity(tmp_path):
    tables = forecasts()
    curves = evaluate.read_loss_curves(tmp_path / "models")
    evaluate.write_evaluation(metrics_of(tables), tables, curves, tmp_path)
    plots = tmp_path / "plots"

    for name in ("", "error_by_family/", "error_by_device/", "error_by_domain/"):
        empty, other = (pd.read_csv(plots / f"{name}{q}.csv") for q in (POWER.name, MEMORY.name))
        assert empty.empty
        assert not other.empty
        assert list(empty) == list(other)
    assert POWER.name not in json.loads((tmp_path / "metrics.json").read_text())
    with pictures(plots) as drawn:
        assert drawn is not None
        pngs = {path.stem for path in drawn.glob("*.png")}
    assert pngs == {"calibration", *QUANTITIES} - {POWER.name}
