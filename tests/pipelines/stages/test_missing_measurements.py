"""Quantities that a source did not measure are neither trained on nor evaluated."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from presage.errors import ReleaseError, TrainingError
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.features.tables.campaign import read_campaign
from presage.models.training import baselines
from presage.models.training.fit import FitConfig
from presage.models.training.solo_rows import find_solo_rows
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.evaluation import evaluation_tables
from presage.pipelines.stages import build_release as release
from presage.pipelines.stages import evaluate, featurize, train, train_interference
from presage.pipelines.stages import fit_solo as learn_solo
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from tests.pipelines.conftest import required_solo_quantities, without_onnx
from tests.pipelines.public_files import ROOT

SETS_AND_SPLITS = 4
TINY = FitConfig(hidden=8, steps=20, learning_rate=0.01, weight_decay=0.0, ensemble=1, seed=0)
TINY_TOGETHER = replace(TINY, batch=32)
FINE = FineTuning(steps=5, learning_rate=0.01, pull=300.0, batch=32)
SETTINGS = Settings(TINY, TINY, 10**6, FINE)
SETTINGS_TOGETHER = Settings(TINY_TOGETHER, TINY_TOGETHER, 10**6, FINE)


@pytest.fixture(scope="module")
def frames():
    """The committed campaign, with memory of every third job and some slowdowns unknown."""
    campaign = read_campaign(ROOT / "data/profiles/cpu-2")
    solo = featurize.featurize_solo(campaign)
    solo.loc[::3, "memory_peak_bytes"] = np.nan
    solo["reason.job"], solo["reason.family"] = "", ""
    solo[["near.job", "near.family", "near.group"]] = True
    colocations = campaign.colocations
    colocations.loc[colocations["member"] == 0, "slowdown"] = np.nan
    return solo, featurize.featurize_interference(campaign)


@pytest.fixture(scope="module")
def forecasts(frames):
    solo, interference = frames
    with without_onnx():
        told = {
            name: train.train(solo, target, SETTINGS, {}).forecasts
            for name, target in required_solo_quantities().items()
        }
        together = train_interference.train(solo, interference, told, SETTINGS_TOGETHER, {})
    return told | {"interference": together.forecasts}


def test_a_row_without_a_measurement_has_a_forecast(frames, forecasts):
    table = forecasts["memory"]

    assert np.isfinite(table[learn_solo.QUANTILES].to_numpy()).all()
    assert (
        table["measured"].isna().sum()
        == SETS_AND_SPLITS * frames[0]["memory_peak_bytes"].isna().sum()
    )


def test_a_member_without_a_slowdown_is_co_located_but_not_evaluated(frames, forecasts):
    _, interference = frames
    first = interference.groupby("colocation")["member"].min()

    assert (first == 0).all()
    assert forecasts["interference"]["measured"].notna().all()
    assert (forecasts["interference"]["member"] > 0).all()
    assert np.isfinite(forecasts["interference"][learn_solo.QUANTILES].to_numpy()).all()


def test_missing_quantities_are_not_evaluated(frames, forecasts, monkeypatch):
    monkeypatch.setattr(baselines, "BASELINES", {"constant": baselines.Constant})
    metrics = evaluate.evaluate(frames[0], frames[1], forecasts)
    measured = frames[0]["memory_peak_bytes"].notna().sum()

    assert {m["rows"] for m in metrics["memory"]["job"].values()} == {measured}
    victims = frames[1]["slowdown"].notna().sum()
    assert {m["rows"] for m in metrics["interference"]["job"].values()} == {victims}
    for splits in metrics.values():
        for models in splits.values():
            assert all(np.isfinite(figures["mape"]) for figures in models.values())
    assert np.isfinite(evaluation_tables.calibration_rows(forecasts)["observed"]).all()


def test_start_up_times_are_of_the_rows_that_tell_them(frames):
    solo = frames[0].assign(setup_s=np.nan)
    solo.loc[0, "setup_s"] = 2.0

    assert release.setup_quantiles(solo) == {"": [2.0] * 5, "cpu-2": [2.0] * 5}
    with pytest.raises(TrainingError, match="setup_s"):
        release.setup_quantiles(frames[0].assign(setup_s=np.nan))


def test_the_solo_job_of_a_member_has_its_share_or_else_the_largest():
    who = {"device_kind": "a100-40gb", "machine": "m", "campaign": "c"}
    solo = pd.DataFrame(
        [{"job_id": "j", "share": share} | who for share in (2 / 7, 1.0, 3 / 7)]
        + [{"job_id": "j", "share": 1.0} | who | {"device_kind": "t4"}]
    )
    members = pd.DataFrame(
        [
            {"job_id": "j", "share": 3 / 7} | who,
            {"job_id": "j", "share": 0.5} | who,
            {"job_id": "j", "share": 0.5} | who | {"device_kind": "t4"},
            {"job_id": "j", "share": 1.0} | who | {"machine": "another"},
        ]
    )

    assert find_solo_rows(solo, members).tolist() == [2, 1, 3, -1]


def test_a_device_measured_only_for_memory_is_in_domain_only_for_memory(frames):
    solo = frames[0].copy()
    solo["memory_peak_bytes"] = 1e9
    measured = {"compute_utilization": np.nan, "step_time_median_s": np.nan}
    elsewhere = solo.iloc[:40].assign(device_kind="a100-40gb", **measured)
    seen = release.training_rows(pd.concat([solo, elsewhere], ignore_index=True))
    devices = release.trained_devices(
        seen, frames[1], dict.fromkeys(QUANTITIES, ("processor",)), None
    )

    assert devices["memory"] == {"cpu-2", "a100-40gb"}
    assert devices["step_time"] == devices["compute_utilization"] == {"cpu-2"}


def test_rows_that_are_all_held_out_make_no_release(frames):
    held_out = frames[0][job_folds(list(frames[0]["job_id"])) == HELD_OUT_FOLD]

    with pytest.raises(ReleaseError, match="rows are held out"):
        release.training_rows(held_out)
