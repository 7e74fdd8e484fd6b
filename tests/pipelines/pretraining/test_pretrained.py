"""Fine-tuning of pretrained networks, and the pretrained release of Presage."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from presage.errors import ReleaseError
from presage.features.columns.schema import columns
from presage.features.device.device import catalogue
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.features.tables.campaign import read_campaign
from presage.models.release.manifest import job_digest
from presage.models.release.release import load_release
from presage.models.release.training_data import CampaignRows, TrainingData, read_training_data
from presage.models.training.fine_tuning import (
    read_interference_networks,
    read_scalar_networks,
    read_training_jobs,
    write_networks,
)
from presage.models.training.fit import FitConfig
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.evaluation import cross_validation as cv
from presage.pipelines.importers import IMPORTERS
from presage.pipelines.pretraining.pretrain import SOURCES
from presage.pipelines.pretraining.pretrained_networks import STARTS, read_pretrained
from presage.pipelines.stages import build_release as release
from presage.pipelines.stages import featurize, train, train_interference
from presage.pipelines.stages import fit_solo as learn_solo
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from tests.pipelines.conftest import required_solo_quantities

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "data/pretrained"
TINY = FitConfig(hidden=8, steps=30, learning_rate=0.01, weight_decay=0.0, ensemble=1, seed=0)
TINY_TOGETHER = replace(TINY, batch=32)
FINE = FineTuning(steps=20, learning_rate=3e-3, pull=300.0, batch=32)
SETTINGS = Settings(TINY, TINY, 10**6, FINE)
SETTINGS_TOGETHER = Settings(TINY_TOGETHER, TINY_TOGETHER, 10**6, FINE)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Rows of a processor, and the same rows labelled as rows of a V100."""
    folder = tmp_path_factory.mktemp("features")
    featurize.featurize([ROOT / "data/profiles/cpu-2"], folder, COMMITTED)
    return folder


@pytest.fixture(scope="module")
def step_time(features):
    """Networks trained on a processor, with the pretrained networks of GPUs."""
    solo = pd.read_parquet(features / "solo.parquet")
    return train.train(solo, QUANTITIES["step_time"], SETTINGS, starts_of("step_time"))


def on_gpu(rows, kind="v100-16gb"):
    sheet = catalogue()[kind]
    rows = rows.assign(device_kind=kind, device_class="gpu", campaign="of a GPU")
    if "full.memory_gb" in rows:
        rows["full.compute_capability"] = sheet.compute_capability
        rows["full.memory_gb"] = sheet.memory_bytes / 2**30
        rows["full.cores"] = sheet.cores
    return rows


def test_the_pretrained_release_is_small_and_of_this_version():
    whole = load_release(COMMITTED / "release")
    size = sum(path.stat().st_size for path in COMMITTED.rglob("*") if path.is_file())

    assert size < 5_000_000
    assert {"k80", "p100", "t4", "v100-16gb", "a100-40gb", "rtx-5090"} <= (
        whole.trained_devices["step_time"]
    )
    assert {"k80", "p100", "v100-16gb"} <= whole.trained_devices["interference"]
    assert whole.trained_devices["memory"] == {"cpu-2"}


def test_a_device_class_without_rows_keeps_the_pretrained_networks(features, step_time, tmp_path):
    solo = pd.read_parquet(features / "solo.parquet")
    step_time.write(tmp_path)

    assert set(step_time.networks) == {"processor"}
    starts = starts_of("step_time")
    widening = {name: by_class["gpu"] for name, by_class in step_time.novelty_margins.items()}
    assert {name: more for name, more in widening.items() if more} == starts["gpu"].margins.novel
    ours, came = (session(path) for path in (tmp_path / "model.onnx", release_file("step_time")))
    rows = on_gpu(solo)[[f"full.{name}" for name in columns("full")]].to_numpy(np.float32)
    np.testing.assert_allclose(ours(rows), came(rows), rtol=1e-4)


def test_a_few_rows_of_a_gpu_change_little_and_keep_the_largest_margins(features, no_onnx):
    solo = pd.read_parquet(features / "solo.parquet")
    start = read_pretrained(COMMITTED)
    assert start is not None
    starts = {
        name: read_scalar_networks(path) for name, path in start.networks("step_time").items()
    }
    few = on_gpu(solo.iloc[:12])
    mixed = pd.concat([solo, few], ignore_index=True)
    trained = train.train(mixed, QUANTITIES["step_time"], SETTINGS, starts)

    assert set(trained.networks) == {"processor", "gpu"}
    assert trained.networks["gpu"].margins.default == starts["gpu"].margins.largest
    table = trained.forecasts
    assert len(table[(table["features"] == "full") & (table["device_kind"] == "v100-16gb")]) == 24
    assert np.isfinite(table[learn_solo.QUANTILES].to_numpy()).all()
    # In the order of the rows, which the interference stage counts on.
    jobs = table[(table["split"] == "job") & (table["features"] == "full")]["job_id"]
    assert list(jobs) == list(mixed["job_id"])


@pytest.mark.parametrize(("predictor", "runs"), [("step_time", 1), ("memory", 10)])
def test_very_few_runs_of_a_gpu_do_not_fail_any_predictor(features, no_onnx, predictor, runs):
    solo = pd.read_parquet(features / "solo.parquet").iloc[::3]
    starts = starts_of(predictor)
    rows = pd.concat([solo, on_gpu(solo.iloc[:runs])], ignore_index=True)
    trained = train.train(rows, QUANTITIES[predictor], SETTINGS, starts)

    # Fine-tuning needs one run; training from scratch needs more than ten, and does not happen.
    assert set(trained.networks) == {"processor"} | set(starts)
    assert np.isfinite(trained.forecasts[learn_solo.QUANTILES].to_numpy()).all()


@pytest.mark.parametrize("runs", [1, 17])
def test_runs_of_one_family_suffice_for_fine_tuning(features, runs):
    solo = pd.read_parquet(features / "solo.parquet")
    alike = on_gpu(solo[solo["family"] == solo["family"].iloc[0]].iloc[:runs])
    target, start = QUANTITIES["step_time"], starts_of("step_time")["gpu"]
    networks, table, _ = learn_solo.fit_device_class(alike, target, SETTINGS, start)

    assert train.can_train(alike, target, start)
    assert not train.can_train(alike, target, None)
    assert networks.margins.default == start.margins.largest
    assert np.isfinite(table[learn_solo.QUANTILES].to_numpy()).all()


def test_a_gpu_without_rows_is_predicted_by_the_pretrained_networks(features, tmp_path):
    solo = pd.read_parquet(features / "solo.parquet")
    slower = on_gpu(solo.iloc[:60])
    slower["step_time_median_s"] *= 30
    rows = pd.concat([solo, slower], ignore_index=True)
    train.train(rows, QUANTITIES["step_time"], SETTINGS, starts_of("step_time")).write(tmp_path)
    ours, came = (session(path) for path in (tmp_path / "model.onnx", release_file("step_time")))
    names = [f"full.{name}" for name in columns("full")]
    here, elsewhere = (
        on_gpu(solo, kind)[names].to_numpy(np.float32) for kind in ("v100-16gb", "rtx-4090")
    )

    np.testing.assert_allclose(ours(elsewhere), came(elsewhere), rtol=1e-4)
    assert np.median(ours(here) / came(here)) > 1.1


def test_two_co_locations_of_a_gpu_suffice_for_fine_tuning(features, no_onnx):
    solo = on_gpu(pd.read_parquet(features / "solo.parquet"))
    interference = on_gpu(pd.read_parquet(features / "interference.parquet"))
    pairs = interference["colocation"].isin(interference["colocation"].unique()[:2])
    told = [solo.assign(split=split, features="full") for split in cv.SPLITS]
    forecasts = {
        name: pd.concat(told).assign(**{"q0.5": lambda rows, of=target: rows[of.column]})
        for name, target in required_solo_quantities().items()
    }
    start = read_pretrained(COMMITTED)
    assert start is not None
    starts = {
        k: read_interference_networks(path) for k, path in start.networks("interference").items()
    }
    trained = train_interference.train(
        solo, interference[pairs], forecasts, SETTINGS_TOGETHER, starts
    )

    assert set(trained.networks) == {"gpu"}
    assert trained.networks["gpu"].margins.default == starts["gpu"].margins.largest


def test_shipped_networks_are_not_trained_on_the_gates_hold_out(features):
    solo = pd.read_parquet(features / "solo.parquet")
    jury = job_folds(list(solo["job_id"])) == HELD_OUT_FOLD
    weights, same, changed = (
        list(networks.stack.state_dict().values())
        for networks, *_ in (
            learn_solo.fit_device_class(
                solo.assign(step_time_median_s=solo["step_time_median_s"] * factor),
                QUANTITIES["step_time"], SETTINGS, None,
            )
            for factor in (1, np.where(jury, 100, 1), np.where(jury, 1, 100))
        )
    )  # fmt: skip

    assert all(map(torch.equal, weights, same))
    assert not all(map(torch.equal, weights, changed))


def test_networks_list_their_training_jobs_and_those_of_the_pretraining(features, tmp_path):
    solo = pd.read_parquet(features / "solo.parquet")
    solo.loc[3, "step_time_median_s"] = np.nan  # not measured, so not in the training data
    target = QUANTITIES["step_time"]
    first, *_ = learn_solo.fit_device_class(solo, target, SETTINGS, None)
    write_networks(replace(first, jobs=first.jobs | {"0" * 12}), tmp_path / "one.npz")
    again, *_ = learn_solo.fit_device_class(
        solo, target, SETTINGS, read_scalar_networks(tmp_path / "one.npz")
    )

    taught = solo[solo[target.column].notna()]["job_id"]
    seen = taught[job_folds(list(taught)) != HELD_OUT_FOLD]
    assert first.jobs == frozenset(map(job_digest, seen))
    assert again.jobs == first.jobs | {"0" * 12}


def test_training_settings_depend_on_the_number_of_rows():
    large = replace(TINY, hidden=64, steps=900, batch=128, jitter=0.2)
    settings = Settings(replace(TINY, jitter=0.3), large, 1000, FINE)

    assert settings.select(999, is_fine_tuning=False) == replace(TINY, jitter=0.3)
    assert settings.select(1000, is_fine_tuning=False) == large
    few, some, many = (settings.select(rows, is_fine_tuning=True) for rows in (10, 100, 1000))
    assert (few.steps, some.steps, many.steps) == (FINE.steps, 100, 900)
    assert (few.weight_decay, some.weight_decay, many.weight_decay) == (30.0, 3.0, 0.3)
    assert {one.jitter for one in (few, some, many)} == {0.0}
    assert (few.learning_rate, many.learning_rate) == (FINE.learning_rate, large.learning_rate)


def test_only_sources_of_permissive_licences_are_pretrained_on():
    assert {IMPORTERS[name].origin.licence for name in SOURCES} == {"Apache-2.0", "MIT"}


def test_a_release_keeps_its_pretrained_networks(features, step_time, tmp_path):
    models, evaluation = tmp_path / "models", tmp_path / "evaluation"
    solo = pd.read_parquet(features / "solo.parquet")
    interference = pd.read_parquet(features / "interference.parquet")
    start = read_pretrained(COMMITTED)
    assert start is not None
    forecasts = {}
    for name, target in required_solo_quantities().items():
        trained = (
            step_time
            if name == "step_time"
            else train.train(solo, target, SETTINGS, starts_of(name))
        )
        trained.write(models / name)
        forecasts[name] = trained.forecasts
    together = train_interference.train(solo, interference, forecasts, SETTINGS_TOGETHER, {})
    together.write(models / "interference")
    evaluation.mkdir()
    for name in ("metrics", "promises"):
        (evaluation / f"{name}.json").write_text("{}")
    made = release.assemble_release(features, models, evaluation, tmp_path / "release", COMMITTED)

    ids = np.array(sorted({*solo["job_id"], *interference["job_id"]}))
    jury = job_folds(list(ids)) == HELD_OUT_FOLD
    begun_with = set().union(
        *(read_training_jobs(path) for name in QUANTITIES for path in start.networks(name).values())
    )
    assert len(begun_with) > 1000
    assert made.trained_on is not None
    assert made.trained_on == frozenset(begun_with) | set(map(job_digest, ids[~jury]))
    assert not made.trained_on & set(map(job_digest, ids[jury]))
    assert made.trained_devices["step_time"] == {"cpu-2"} | start.devices("step_time")
    assert made.trained_devices["memory"] == {"cpu-2"}
    assert set(made.domains) == {"processor", "gpu"}
    assert made.domains["gpu"] == start.release.domains["gpu"]
    assert made.classes("memory") == {"processor"}
    assert set(made.classes("step_time")) == {"processor", "gpu"}
    told = read_training_data(made.manifest, "made")
    assert told is not None
    assert told.base_release == release.describe_base_release(start)


def test_the_manifest_lists_the_data_of_the_pretraining_too():
    start = read_pretrained(COMMITTED)
    assert start is not None
    of_gpu, of_cpu = (CampaignRows(name, "m", name, 1, 0, 0, 0) for name in ("gpu", "processor"))
    told = TrainingData((), (of_gpu, of_cpu)).as_json()
    spoken = replace(start.release, manifest={**start.release.manifest, "learnt_from": told})
    began = release.describe_base_release(replace(start, release=spoken))

    assert began is not None
    assert began.training_data == TrainingData((), (of_gpu,))
    assert (began.release_id, set(began.networks)) == (
        start.release.release_id,
        {"step_time-gpu", "interference-gpu"},
    )
    assert release.describe_base_release(None) is None


def test_only_device_classes_without_rows_keep_pretrained_networks():
    start = read_pretrained(COMMITTED)
    assert start is not None

    assert STARTS == ("gpu",)
    assert set(start.domains) == {"gpu"}
    assert "cpu-2" not in set().union(*map(start.devices, QUANTITIES))


def test_a_release_without_its_networks_is_rejected(tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "copy")
    (tmp_path / "copy/networks/step_time-gpu.npz").unlink()

    with pytest.raises(ReleaseError, match="no networks of step_time") as caught:
        read_pretrained(tmp_path / "copy")
    assert "\n" not in str(caught.value)


def test_the_error_of_a_corrupt_or_missing_pretrained_folder_is_one_line(tmp_path):
    shutil.copytree(COMMITTED, tmp_path / "copy")
    path = tmp_path / "copy/release/release.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    for name, match in (("copy", "release format 1"), ("none", "cannot be read")):
        with pytest.raises(ReleaseError, match=match) as caught:
            read_pretrained(tmp_path / name)
        assert "\n" not in str(caught.value)


def measured(device):
    """A device as `presage profile` measures it: below its data sheet."""
    peaks = {name: 0.8 * peak for name, peak in device.peak_flops_per_s.items()}
    bandwidth = 0.88 * device.memory_bandwidth_bytes_per_s
    return replace(
        device, peak_flops_per_s=peaks, memory_bandwidth_bytes_per_s=bandwidth, op_overhead_s=5e-6,
        context_bytes=700 << 20,
    )  # fmt: skip


def campaign_on(device):
    campaign = read_campaign(ROOT / "data/profiles/cpu-2")
    return replace(campaign, devices=dict.fromkeys(campaign.devices, device))


def test_the_calibration_of_a_trained_gpu_does_not_change_its_forecasts():
    start = read_pretrained(COMMITTED)
    assert start is not None
    sheet = start.release.devices["v100-16gb"]
    names = [f"full.{name}" for name in columns("full")]
    predict = session(release_file("step_time"))
    of_sheet, as_measured, restored = (
        predict(featurize.featurize_solo(campaign)[names].to_numpy(np.float32))
        for campaign in (
            campaign_on(sheet),
            campaign_on(measured(sheet)),
            start.restore_speeds(campaign_on(measured(sheet))),
        )
    )

    # A prior of four fifths of the speed makes forecasts longer.
    assert np.median(np.abs(as_measured / of_sheet - 1)) > 0.05
    np.testing.assert_allclose(restored, of_sheet, rtol=0.01)


def test_a_gpu_outside_the_training_data_and_a_processor_keep_their_calibration():
    start = read_pretrained(COMMITTED)
    assert start is not None
    assert "h200" not in start.calibrated
    for kind in ("h200", "cpu-2"):
        campaign = campaign_on(measured(catalogue()[kind]))
        assert start.restore_speeds(campaign).devices == campaign.devices


def test_a_trained_gpu_keeps_its_measured_memory():
    start = read_pretrained(COMMITTED)
    assert start is not None
    sheet = start.release.devices["v100-16gb"]
    (device,) = set(start.restore_speeds(campaign_on(measured(sheet))).devices.values())

    assert device == replace(sheet, context_bytes=700 << 20)


def starts_of(predictor):
    """Return the pretrained networks by device class."""
    start = read_pretrained(COMMITTED)
    assert start is not None
    return {name: read_scalar_networks(path) for name, path in start.networks(predictor).items()}


def release_file(predictor):
    return COMMITTED / "release" / f"{predictor}.onnx"


def session(path):
    import onnxruntime as ort

    loaded = ort.InferenceSession(path.read_bytes())
    return lambda rows: loaded.run(None, {"features": rows})[0]
