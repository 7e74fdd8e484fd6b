"""Networks averaged with boosted trees: trained, cross-validated, stored, released and served."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from presage.errors import ConfigError, ReleaseError
from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES
from presage.features.tables.campaign import read_campaign
from presage.models.networks.predictors import ScalarPredictor
from presage.models.release.release import load_release
from presage.models.training import baselines, fit_trees
from presage.models.training.fine_tuning import read_scalar_networks, write_networks
from presage.models.training.fit import FitConfig
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.stages import (
    build_release,
    evaluate,
    featurize,
    fit_solo,
    train,
    train_interference,
)
from presage.pipelines.stages.feature_table import feature_matrix
from presage.pipelines.stages.fit_settings import FineTuning, Settings, read_settings
from presage.pipelines.stages.fit_solo import fit_device_class
from presage.pipelines.stages.stage import PARAMS
from presage.serving.predictor.predictor import Predictor
from presage.serving.predictor.served_release import check_change
from tests.pipelines.conftest import required_solo_quantities, without_onnx
from tests.serving.conftest import make_models
from tests.support.small_campaign import small_campaign

STEP_TIME = QUANTITIES["step_time"]
TINY = FitConfig(hidden=8, steps=40, learning_rate=0.02, weight_decay=0.0, ensemble=2, seed=0)
FINE = FineTuning(steps=5, learning_rate=0.01, pull=300.0, batch=32)
WITHOUT = Settings(TINY, TINY, 10**6, FINE)
TREES = fit_trees.TREES
WEIGHT = 0.5
WITH = replace(WITHOUT, small_tables=replace(TINY, trees=WEIGHT))


@pytest.fixture(scope="module", autouse=True)
def few_trees():
    """Fit ten trees instead of more, which would take a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_trees, "TREES", 10)
        yield


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return small_campaign(tmp_path_factory.mktemp("trees") / "cpu-2")


@pytest.fixture(scope="module")
def features(campaign):
    folder = campaign.with_name("features")
    featurize.featurize([campaign], folder)
    return folder


@pytest.fixture(scope="module")
def solo(features):
    return pd.read_parquet(features / "solo.parquet")


@pytest.fixture(scope="module")
def step_time(solo):
    return train.train(solo, STEP_TIME, WITH, {})


@pytest.fixture(scope="module")
def without_trees(solo):
    with without_onnx():
        return train.train(solo, STEP_TIME, WITHOUT, {})


def test_trees_of_processes_are_the_same(monkeypatch):
    monkeypatch.setattr(fit_trees, "TREES", TREES)  # as in other processes
    monkeypatch.setattr("joblib.cpu_count", lambda **_: 2)
    rng, folds = np.random.default_rng(0), {"job": np.arange(60) % 2}
    features, target = rng.normal(size=(60, 4)), rng.normal(size=60)
    members = cv.plan_members(1, folds)
    weights = cv.training_weights(members, folds)

    def fitted():
        config = WITH.small_tables
        with fit_solo._fitting_trees(members, features, target, weights, range(4), config) as trees:
            return [one.state_dict() for one in trees or ()]

    here = fitted()
    monkeypatch.setattr(fit_solo, "LONG_ROWS", 60)
    for one, other in zip(here, fitted(), strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())


def held_out(solo):
    return job_folds(list(solo["job_id"])) == HELD_OUT_FOLD


def forecasts_of(trained, split, feature_set="full"):
    table = trained.forecasts
    return table[(table["split"] == split) & (table["features"] == feature_set)]


def medians(trained, split, feature_set="full"):
    return forecasts_of(trained, split, feature_set)["q0.5"].to_numpy()


@pytest.mark.parametrize("split", ["job", "family"])
def test_forecasts_are_those_of_the_mean_and_other_feature_sets_have_no_trees(
    step_time, without_trees, split
):
    moved = np.log(medians(step_time, split) / medians(without_trees, split))

    assert np.abs(moved).max() > 0.05
    np.testing.assert_array_equal(
        medians(step_time, split, "published"), medians(without_trees, split, "published")
    )
    here, there = (trained.networks["processor"].stack for trained in (step_time, without_trees))
    assert all(map(torch.equal, here.state_dict().values(), there.state_dict().values()))


def test_the_released_predictor_forecasts_held_out_jobs_as_cross_validation_did(solo, step_time):
    trained, out = step_time.networks["processor"], held_out(solo)
    predictor = ScalarPredictor(trained.stack, STEP_TIME, trained.margins, trained.trees)
    x = torch.tensor(feature_matrix(solo, "full")).float()
    found = predictor(x).detach().numpy()[:, 2]

    np.testing.assert_allclose(found[out], medians(step_time, "job")[out], rtol=1e-4)
    assert np.abs(found[~out] / medians(step_time, "job")[~out] - 1).max() > 0.02


def test_trees_are_not_trained_on_the_held_out_fold(solo):
    out = held_out(solo)
    fitted = [
        fit_device_class(
            solo.assign(step_time_median_s=solo["step_time_median_s"] * factor),
            STEP_TIME, WITH, None,
        )[0].trees
        for factor in (1, np.where(out, 100, 1), np.where(out, 1, 100))
    ]  # fmt: skip
    base, same, changed = ([*one.state_dict().values()] for one in fitted if one is not None)

    assert all(map(torch.equal, base, same))
    assert not all(map(torch.equal, base, changed))


def test_unmeasured_rows_have_a_forecast_and_are_not_trained_on(solo):
    gap = solo.assign(step_time_median_s=solo["step_time_median_s"].where(solo.index % 4 > 0))
    with without_onnx():
        table = train.train(gap, STEP_TIME, WITH, {}).forecasts

    assert np.isfinite(table[["q0.05", "q0.5", "q0.95"]].to_numpy()).all()


def test_intervals_are_calibrated_on_forecasts_of_the_mean(solo, step_time):
    table = forecasts_of(step_time, "job")
    inside = table["measured"].between(table["q0.1"], table["q0.9"]).mean()

    assert 0.6 < inside < 0.95


def test_a_file_of_networks_has_their_trees(step_time, without_trees, tmp_path):
    for trained, name in ((step_time, "with"), (without_trees, "without")):
        write_networks(trained.networks["processor"], tmp_path / f"{name}.npz")
    again, plain = (read_scalar_networks(tmp_path / f"{n}.npz") for n in ("with", "without"))

    trees = step_time.networks["processor"].trees
    assert again.trees is not None
    for name, value in trees.state_dict().items():
        assert torch.equal(again.trees.state_dict()[name], value)
    assert plain.trees is None


def test_a_file_that_lacks_an_array_of_its_trees_is_rejected(step_time, tmp_path):
    path = tmp_path / "networks.npz"
    write_networks(step_time.networks["processor"], path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file if name != "trees.threshold"}
    np.savez(path, **arrays)

    with pytest.raises(ReleaseError, match="no networks to fine-tune"):
        read_scalar_networks(path)


def test_fine_tuned_networks_have_no_trees_and_their_fallback_keeps_them(solo, step_time):
    start = step_time.networks["processor"]
    fine, *_ = fit_device_class(solo.iloc[:30], STEP_TIME, WITH, start)

    assert start.trees is not None
    assert fine.trees is None
    assert WITH.select(30, is_fine_tuning=True).trees == 0
    assert WITH.select(30, is_fine_tuning=False).trees == WEIGHT


def test_the_committed_settings_have_trees_only_where_they_were_chosen():
    weights = {
        name: (found.small_tables.trees, found.large_tables.trees)
        for name, found in ((name, read_settings(name)) for name in QUANTITIES)
    }

    assert weights.pop("step_time")[0] > 0
    assert set(weights.values()) == {(0.0, 0.0)}


def test_trees_for_co_locations_are_an_error(tmp_path, monkeypatch):
    params = yaml.safe_load(PARAMS.read_text())
    params["train"]["interference"]["trees"] = 0.5
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=r"train.interference.trees: only solo predictors"):
        read_settings("interference")


# A release ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release(features, solo, step_time):
    models, evaluation = (features.with_name(name) for name in ("models", "evaluation"))
    forecasts, by_hand = {"step_time": step_time.forecasts}, make_models()
    step_time.write(models / "step_time")
    interference = pd.read_parquet(features / "interference.parquet")
    with without_onnx():
        for name, quantity in required_solo_quantities().items():
            if name != "step_time":
                trained = replace(train.train(solo, quantity, WITHOUT, {}), onnx=by_hand[name])
                trained.write(models / name)
                forecasts[name] = trained.forecasts
        together = train_interference.train(solo, interference, forecasts, WITHOUT, {})
    replace(together, onnx=by_hand[INTERFERENCE.name]).write(models / INTERFERENCE.name)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("boosted_trees", "linear"):  # seconds
            patch.delitem(baselines.BASELINES, name)
        folders = ["--features", str(features), "--models", str(models)]
        evaluate.main([*folders, "--target", str(evaluation)])
    target = features.with_name("release")
    build_release.assemble_release(features, models, evaluation, target)
    return load_release(target)


def test_a_release_with_trees_passes_its_probes_and_serves_the_mean(
    release, campaign, solo, step_time
):
    predictor = Predictor(release)
    predictor.check_probes()
    predictor.warm_up()
    measured = read_campaign(campaign)
    runs = measured.executions.drop_duplicates("job_id").set_index("job_id", drop=False)
    names = solo["job_id"][held_out(solo)]
    found = predictor.predict([measured.placement(runs.loc[name]) for name in names])
    expected = medians(step_time, "job")[held_out(solo)]

    np.testing.assert_allclose([one.step_time_s.median for one in found], expected, rtol=1e-3)


def test_a_release_without_trees_and_one_with_trees_replace_each_other(release):
    pretrained = Predictor(load_release(Path("data/pretrained/release")))

    pretrained.check_probes()
    check_change(Predictor(release), pretrained, max_change=1e9)
    check_change(pretrained, Predictor(release), max_change=1e9)
