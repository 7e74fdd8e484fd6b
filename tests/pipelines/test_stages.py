"""The stages on the committed campaign: their outputs, damaged inputs, and Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from presage.features.errors import TableError, TrainingError
from presage.features.schema import columns
from presage.models.fit import FitConfig
from presage.models.targets import TARGETS
from presage.pipelines import evaluate, featurize, release, train, train_interference
from presage.pipelines.campaigns import read_campaign

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / "data/profiles/cpu-2"
TINY = FitConfig(hidden=8, steps=30, learning_rate=0.01, weight_decay=0.0, ensemble=1, seed=0)
FOLDERS = ("--features", "data/features", "--models", "data/models")
STAGES = {
    "featurize": (str(CAMPAIGN), "--target", "again/features"),
    "train": ("step_time", "--features", "data/features", "--target", "again/step_time"),
    "train_interference": (*FOLDERS, "--target", "again/interference"),
    "evaluate": (*FOLDERS, "--target", "again/evaluation"),
    "release": (*FOLDERS, "--evaluation", "data/evaluation", "--target", "again/release"),
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Outputs of every stage up to evaluate, with tiny networks."""
    root = tmp_path_factory.mktemp("stages")
    features, models = root / "data/features", root / "data/models"
    featurize.featurize([CAMPAIGN], features)
    solo = pd.read_parquet(features / "solo.parquet")
    interference = pd.read_parquet(features / "interference.parquet")
    forecasts = {}
    for name, target in TARGETS.items():
        forecasts[name], onnx = train.train(solo, target, TINY)
        store(models / name, forecasts[name], onnx)
    table, onnx = train_interference.train(solo, interference, forecasts, TINY)
    store(models / "interference", table, onnx)
    folders = ["--features", str(features), "--models", str(models)]
    evaluate.main([*folders, "--target", str(root / "data/evaluation")])
    slow = vars_of(TINY) | {"steps": 20_000}
    params = {"train": {"solo": slow, "interference": slow}}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return root


def vars_of(config: FitConfig) -> dict:
    return {name: getattr(config, name) for name in FitConfig.__slots__}


def store(folder, forecasts, onnx):
    folder.mkdir(parents=True)
    forecasts.to_parquet(folder / "forecasts.parquet")
    (folder / "model.onnx").write_bytes(onnx)


def test_the_committed_campaign_is_as_large_as_promised():
    campaign = read_campaign(CAMPAIGN)
    ran = campaign.executions[campaign.executions["failure"] == ""]

    assert len(ran) >= 150
    assert len({job.job.family for job in campaign.jobs.values()}) >= 10
    assert campaign.colocations["colocation_id"].nunique() >= 200
    assert set(campaign.colocations["members"]) >= {2, 3}


def test_every_measured_job_has_finite_features_and_a_positive_roofline(workspace):
    solo = pd.read_parquet(workspace / "data/features/solo.parquet")
    values = solo[[f"full.{name}" for name in columns("full")]].to_numpy()

    assert np.isfinite(values).all()
    assert (solo["full.roofline_s"] > 0).all()
    assert (solo["full.unknown_ops"] == 0).all()


def test_forecasts_are_in_order_and_each_job_is_judged_once_per_split(workspace):
    table = pd.read_parquet(workspace / "data/models/step_time/forecasts.parquet")
    full = table[table["features"] == "full"]

    assert (np.diff(full[train.QUANTILES].to_numpy(), axis=1) >= 0).all()
    assert not full.duplicated(["split", "job_id", "machine", "campaign"]).any()
    assert (full["q0.05"] > 0).all()


def test_a_release_is_made_of_the_stages_outputs(workspace, tmp_path):
    features, models, evaluation = (
        workspace / "data" / name for name in ("features", "models", "evaluation")
    )
    first = release.assemble_release(features, models, evaluation, tmp_path / "one")
    again = release.assemble_release(features, models, evaluation, tmp_path / "two")

    assert first.release_id == again.release_id
    assert first.trained_devices == {"cpu-2"}
    assert set(first.domain) == set(columns("full"))


# Bad input.


@pytest.fixture
def campaign(tmp_path):
    return Path(shutil.copytree(CAMPAIGN, tmp_path / "campaign"))


def change(path, edit):
    data = pq.read_table(path, partitioning=None)
    pq.write_table(edit(data), path)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda t: t.drop_columns(["setup_s"]), "no column 'setup_s'"),
        (lambda t: t.append_column("x", t.column("steps")), "column 'x' does not belong"),
        (lambda t: t.set_column(4, "steps", t.column("share")), "'steps' is double"),
    ],
)
def test_a_damaged_table_is_named(campaign, tmp_path, edit, match):
    change(campaign / "executions.parquet", edit)
    with pytest.raises(TableError, match=match) as caught:
        featurize.featurize([campaign], tmp_path / "features")
    assert "executions.parquet" in str(caught.value)
    assert not (tmp_path / "features").exists()


def test_a_run_of_a_job_that_no_row_describes_is_named(campaign, tmp_path):
    change(campaign / "jobs.parquet", lambda table: table.slice(1))
    with pytest.raises(TableError, match=r"refers to job .* which no row describes"):
        featurize.featurize([campaign], tmp_path / "features")


def test_campaigns_in_which_nothing_ran_are_refused(campaign, tmp_path):
    for name in ("executions", "colocations"):
        change(campaign / f"{name}.parquet", lambda table: table.slice(0, 0))
    with pytest.raises(TrainingError, match="presage profile"):
        featurize.featurize([campaign], tmp_path / "features")


def test_a_campaign_without_colocations_cannot_train_interference(workspace):
    solo = pd.read_parquet(workspace / "data/features/solo.parquet")
    nothing = pd.read_parquet(workspace / "data/features/interference.parquet").head(0)
    forecasts = {
        name: pd.read_parquet(workspace / f"data/models/{name}/forecasts.parquet")
        for name in TARGETS
    }
    with pytest.raises(TrainingError, match="no co-location ran"):
        train_interference.train(solo, nothing, forecasts, TINY)


def test_too_few_jobs_to_calibrate_say_how_many_are_needed(workspace):
    solo = pd.read_parquet(workspace / "data/features/solo.parquet").head(8)
    with pytest.raises(TrainingError, match="measure more jobs"):
        train.train(solo, TARGETS["memory"], TINY)


def test_an_unreadable_folder_is_one_line_and_exit_code_1(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "presage.pipelines.featurize", "nowhere", "--target", "x"],
        cwd=tmp_path, text=True, capture_output=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.startswith("error: nowhere/")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_in_any_stage_is_130_to_the_shell_and_leaves_no_half_written_file(workspace, stage):
    command = f"exec {sys.executable} -m presage.pipelines.{stage} {' '.join(STAGES[stage])}"
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=workspace, text=True, stderr=subprocess.PIPE,
        start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    time.sleep(2.5)
    finished = process.poll() is not None
    if not finished:
        os.killpg(process.pid, signal.SIGINT)
    code = process.wait(timeout=60)

    assert finished or code in (130, -signal.SIGINT)
    assert not list(workspace.rglob("*.partial"))
    for path in (workspace / "again").rglob("*.parquet"):
        assert pq.read_table(path).num_rows
