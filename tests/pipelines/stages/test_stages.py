"""DVC stages on the committed campaign: outputs, corrupt inputs, and Ctrl-C."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from presage.errors import ConfigError, TableError, TrainingError
from presage.features.columns.schema import columns
from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities
from presage.features.tables import schemas as tables
from presage.features.tables.campaign import read_campaign
from presage.models.release.training_data import read_training_data
from presage.models.training import baselines
from presage.models.training.fit import FitConfig
from presage.models.training.splits import HELD_OUT_FOLD, job_folds
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.zoo import parse
from presage.pipelines.stages import build_release as release
from presage.pipelines.stages import evaluate, featurize, promote, train, train_interference
from presage.pipelines.stages import fit_solo as learn_solo
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from presage.pipelines.stages.stage import run_stage
from tests.pipelines.conftest import required_solo_quantities

ROOT = Path(__file__).parents[3]
CAMPAIGN = ROOT / "data/profiles/cpu-2"
TINY = FitConfig(hidden=8, steps=30, learning_rate=0.01, weight_decay=0.0, ensemble=1, seed=0)
TINY_TOGETHER = replace(TINY, batch=32)
FINE = FineTuning(steps=5, learning_rate=0.01, pull=300.0, batch=32)
SETTINGS = Settings(TINY, TINY, 10**6, FINE)
SETTINGS_TOGETHER = Settings(TINY_TOGETHER, TINY_TOGETHER, 10**6, FINE)
FOLDERS = ("--features", "data/features", "--models", "data/models")
# Arguments of each stage; its target follows.
STAGES = {
    "ingest": ("--to",),
    "featurize": (str(CAMPAIGN), "--target"),
    "train": ("step_time", "--features", "data/features", "--target"),
    "train_interference": (*FOLDERS, "--target"),
    "evaluate": (*FOLDERS, "--target"),
    "build_release": (*FOLDERS, "--evaluation", "data/evaluation", "--target"),
    "promote": ("data/release", "data/features"),
}
# A stage that says when it is in the middle of writing a file, and stays there.
STUCK_IN_A_WRITE = """
import os, runpy, sys, time

def stay(descriptor):
    print("writing", os.readlink(f"/proc/self/fd/{descriptor}"), flush=True)
    time.sleep(120)

os.fsync = stay
from presage.models.onnx_export import export
export.export = lambda *_: b"in place of seconds of work"
sys.argv = sys.argv[1:]
if sys.argv[0] == "evaluate":  # boosted trees take a minute
    from presage.models.training import baselines
    baselines.BASELINES = {"constant": baselines.Constant}
runpy.run_module(f"presage.pipelines.stages.{sys.argv[0]}", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Outputs of every stage up to release, with tiny networks, and parameters for more."""
    root = tmp_path_factory.mktemp("stages")
    features, models = root / "data/features", root / "data/models"
    featurize.featurize([CAMPAIGN], features)
    solo = pd.read_parquet(features / "solo.parquet")
    interference = pd.read_parquet(features / "interference.parquet")
    forecasts = {}
    for name, target in required_solo_quantities().items():
        trained = train.train(solo, target, SETTINGS, {})
        trained.write(models / name)
        forecasts[name] = trained.forecasts
    together = train_interference.train(solo, interference, forecasts, SETTINGS_TOGETHER, {})
    together.write(models / "interference")
    folders = ["--features", str(features), "--models", str(models)]
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(baselines.BASELINES, "boosted_trees")  # a minute, and no network of ours
        evaluate.main([*folders, "--target", str(root / "data/evaluation")])
    release.assemble_release(features, models, root / "data/evaluation", root / "data/release")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    tiny = dict.fromkeys(solo_quantities(), asdict(TINY)) | {"interference": asdict(TINY_TOGETHER)}
    params["train"] |= tiny | {"thousands": params["train"]["thousands"] | tiny}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return root


@pytest.mark.parametrize(
    ("name", "jobs", "families", "colocations"),
    [("cpu-2", 150, 13, 200), ("cpu-2-zoo", 150, 18, 60), ("cpu-2-llm", 60, 2, 0)],
)
def test_the_committed_campaigns_have_the_documented_size(name, jobs, families, colocations):
    campaign = read_campaign(CAMPAIGN.with_name(name))
    ran = campaign.executions[campaign.executions["failure"] == ""]

    assert len(ran) >= jobs
    assert len({job.job.family for job in campaign.jobs.values()}) == families
    assert campaign.colocations["colocation_id"].nunique() >= colocations
    assert not colocations or set(campaign.colocations["members"]) >= {2, 3}


@pytest.mark.parametrize("name", ["cpu-2", "cpu-2-zoo", "cpu-2-llm"])
def test_stored_graphs_equal_those_of_the_current_tracer(name):
    jobs = tables.read(tables.JOBS, CAMPAIGN.with_name(name) / "jobs.parquet").to_pandas()
    smallest = jobs.loc[jobs.groupby("family")["peak_live_bytes"].idxmin()]
    traced = {job_id: trace(parse(job_id)).digest for job_id in smallest["job_id"]}
    stored = dict(zip(smallest["job_id"], smallest["graph_digest"], strict=True))

    assert traced == stored, (
        "the tracer has changed since these graphs were stored; run "
        f"`python -m presage.pipelines.stages.profile data/profiles/{name} --retrace`"
    )


def test_every_measured_job_has_finite_features_and_a_positive_roofline(workspace):
    solo = pd.read_parquet(workspace / "data/features/solo.parquet")
    values = solo[[f"full.{name}" for name in columns("full")]].to_numpy()

    assert np.isfinite(values).all()
    assert (solo["full.roofline_s"] > 0).all()
    assert (solo["full.unknown_ops"] == 0).all()


def test_forecasts_are_ordered_and_each_job_occurs_once_per_split(workspace):
    table = pd.read_parquet(workspace / "data/models/step_time/forecasts.parquet")
    full = table[table["features"] == "full"]

    assert (np.diff(full[learn_solo.QUANTILES].to_numpy(), axis=1) >= 0).all()
    assert not full.duplicated(["split", "job_id", "machine", "campaign"]).any()
    assert (full["q0.05"] > 0).all()


def test_baselines_are_reused_for_unchanged_forecasts(workspace, monkeypatch):
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")
    folder = workspace / "data/evaluation"
    forecasts = evaluate.read_forecasts(workspace / "data/models")

    assert evaluate.read_previous_metrics(folder, forecasts) == json.loads(
        (folder / "metrics.json").read_text()
    )
    assert evaluate.read_previous_metrics(workspace / "absent", forecasts) is None
    forecasts["memory"] = forecasts["memory"].assign(
        measured=forecasts["memory"]["measured"] * 1.001
    )
    assert evaluate.read_previous_metrics(folder, forecasts) is None


def test_metrics_without_a_baseline_are_not_reused(workspace):
    forecasts = evaluate.read_forecasts(workspace / "data/models")

    assert "boosted_trees" in baselines.BASELINES
    assert evaluate.read_previous_metrics(workspace / "data/evaluation", forecasts) is None


def _check_lineage(release, features):
    """Check the tables and the numbers of training rows in a manifest."""
    data = read_training_data(release.manifest, "release")
    assert data is not None
    (folder,), (rows,) = data.folders, data.rows
    executions = CAMPAIGN / "executions.parquet"
    assert (folder.folder, folder.campaigns) == ("data/profiles/cpu-2", (rows.campaign,))
    assert folder.tables["executions"].sha256 == sha256(executions.read_bytes()).hexdigest()
    assert folder.tables["executions"].rows == pq.read_metadata(executions).num_rows
    solo, together = (
        pd.read_parquet(features / f"{name}.parquet") for name in ("solo", "interference")
    )
    jobs = list(solo["job_id"])
    is_held_out = dict(zip(jobs, job_folds(jobs) == HELD_OUT_FOLD, strict=True))
    assert rows.held_out_executions == sum(is_held_out[job] for job in jobs)
    assert rows.executions + rows.held_out_executions == len(solo)
    known = together[together["slowdown"].notna()].groupby("colocation")["job_id"]
    hidden = known.transform(lambda jobs: any(is_held_out[job] for job in jobs))
    assert rows.held_out_colocations == hidden.sum()
    assert rows.colocations == (~hidden.astype(bool)).sum() > 0


def test_equal_tables_in_another_folder_give_the_same_release(workspace, tmp_path):
    shutil.copytree(CAMPAIGN, tmp_path / "measured-elsewhere")
    featurize.featurize([tmp_path / "measured-elsewhere"], tmp_path / "features")
    made = [
        release.assemble_release(
            features, workspace / "data/models", workspace / "data/evaluation", tmp_path / name
        )
        for name, features in (("one", workspace / "data/features"), ("two", tmp_path / "features"))
    ]

    folders = [one.manifest["learnt_from"]["folders"][0]["folder"] for one in made]
    assert folders == ["data/profiles/cpu-2", "measured-elsewhere"]
    assert made[0].release_id == made[1].release_id


def test_a_release_is_built_from_the_outputs_of_the_stages(workspace, tmp_path):
    features, models, evaluation = (
        workspace / "data" / name for name in ("features", "models", "evaluation")
    )
    first = release.assemble_release(features, models, evaluation, tmp_path / "one")
    again = release.assemble_release(features, models, evaluation, tmp_path / "two")

    assert first.release_id == again.release_id
    _check_lineage(first, features)
    assert set(first.trained_devices.values()) == {frozenset({"cpu-2"})}
    assert first.domains["processor"].radius > 0


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
def test_a_corrupt_table_is_named(campaign, tmp_path, edit, match):
    change(campaign / "executions.parquet", edit)
    with pytest.raises(TableError, match=match) as caught:
        featurize.featurize([campaign], tmp_path / "features")
    assert "executions.parquet" in str(caught.value)
    assert not (tmp_path / "features").exists()


def every(name, value):
    """Return an edit that sets every row of a column to ``value``."""

    def edit(table):
        field = table.schema.field(name)
        column = pa.array([value] * len(table), field.type)
        return table.set_column(table.column_names.index(name), field, column)

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "match"),
    [
        ("jobs", every("precision", "fp7"), "precision 'fp7' is not known"),
        ("nodes", every("kind", "Magic"), "operator kind 'Magic' is not in the op table"),
        ("devices", every("peak_flops_per_s", [1e9]), "must have as many values as precisions"),
        ("devices", every("cores", 0), "'cores' is 0"),
        ("executions", every("share", 2.0), "share 2.0 of a device"),
        ("executions", every("sharing_mode", "luck"), "sharing mode 'luck' is not known"),
        ("executions", every("campaign", "other"), "refers to device .*'other'"),
    ],
)
def test_an_impossible_value_is_an_error_that_names_the_file(campaign, name, edit, match):
    change(campaign / f"{name}.parquet", edit)
    with pytest.raises(TableError, match=f"{campaign / name}.parquet: .*{match}"):
        read_campaign(campaign)


def test_the_device_of_a_row_is_that_of_its_campaign(campaign):
    path = campaign / "devices.parquet"
    change(path, lambda t: pa.concat_tables([every("campaign", "zzz")(every("cores", 64)(t)), t]))
    read = read_campaign(campaign)

    for row in read.executions.to_dict("records"):
        assert read.devices[row["device_kind"], row["machine"], row["campaign"]].cores == 2


def test_a_run_of_an_unknown_job_is_named(campaign, tmp_path):
    change(campaign / "jobs.parquet", lambda table: table.slice(1))
    with pytest.raises(TableError, match=r"refers to job .* which no row describes"):
        featurize.featurize([campaign], tmp_path / "features")


def test_campaigns_without_a_completed_run_are_rejected(campaign, tmp_path):
    for name in ("executions", "colocations"):
        change(campaign / f"{name}.parquet", lambda table: table.slice(0, 0))
    with pytest.raises(TrainingError, match="presage profile"):
        featurize.featurize([campaign], tmp_path / "features")


def test_a_campaign_without_colocations_cannot_train_interference(workspace):
    solo = pd.read_parquet(workspace / "data/features/solo.parquet")
    nothing = pd.read_parquet(workspace / "data/features/interference.parquet").head(0)
    forecasts = {
        name: pd.read_parquet(workspace / f"data/models/{name}/forecasts.parquet")
        for name in required_solo_quantities()
    }
    with pytest.raises(TrainingError, match="no co-location was measured"):
        train_interference.train(solo, nothing, forecasts, SETTINGS_TOGETHER, {})


def test_too_few_jobs_for_calibration_name_the_needed_number(workspace):
    solo = pd.read_parquet(workspace / "data/features/solo.parquet").head(8)
    with pytest.raises(TrainingError, match="measure more jobs"):
        train.train(solo, QUANTITIES["memory"], SETTINGS, {})


def test_an_unreadable_folder_is_a_one_line_error_with_status_1(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "presage.pipelines.stages.featurize", "nowhere", "--target",
         str(tmp_path / "x")],
        cwd=ROOT, text=True, capture_output=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.startswith("error: nowhere/")
    assert done.stderr.count("\n") == 1


def run(stage, workspace, target):
    modules = {"train": train, "train_interference": train_interference, "promote": promote}
    arguments = [argument.replace("data/", f"{workspace}/data/") for argument in STAGES[stage]]
    modules[stage].main([*arguments, str(target)])


@pytest.mark.parametrize(
    ("stage", "section", "change", "match"),
    [
        (
            "train",
            "step_time",
            {"hiden": 9},
            "step_time.hiden is not a setting; did you mean 'hidden'",
        ),
        ("train", "step_time", {"hidden": "9"}, "train.step_time.hidden='9' is not an integer"),
        ("train_interference", "interference", {"seed": 0.5}, "train.interference.seed=0.5"),
        ("train_interference", "interference", None, "no section 'train.interference'"),
        ("promote", "tolerance", {"mape": "1e-2"}, "promote.tolerance.mape='1e-2' is not a number"),
        ("promote", "tolerance", {"mode": 1}, "promote.tolerance names"),
        ("promote", "tolerance", None, "promote.tolerance is missing"),
    ],
)
def test_an_invalid_parameter_is_named(
    workspace, tmp_path, monkeypatch, stage, section, change, match
):
    params = yaml.safe_load((workspace / "params.yaml").read_text())
    within = params[stage.partition("_")[0]]
    within[section] = within[section] | change if change else None
    if change is None and stage == "promote":
        del within[section]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=f"params.yaml: .*{match}"):
        run(stage, workspace, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("stage", ["train", "train_interference", "promote"])
def test_a_stage_without_params_yaml_names_the_folder_to_run_in(
    workspace, tmp_path, monkeypatch, stage
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^params.yaml: No such file .* repository's root"):
        run(stage, workspace, tmp_path / "target")


@pytest.mark.parametrize("content", [None, b"PAR1 and then nothing"])
@pytest.mark.parametrize("stage", ["train", "train_interference"])
def test_a_stage_names_an_unreadable_table(workspace, tmp_path, monkeypatch, stage, content):
    monkeypatch.chdir(workspace)
    if content is not None:
        (tmp_path / "data/features").mkdir(parents=True)
        (tmp_path / "data/features/solo.parquet").write_bytes(content)

    with pytest.raises(TableError, match=r"data/features/solo.parquet: .*dvc repro"):
        run(stage, tmp_path, tmp_path / "target")


@pytest.mark.parametrize(
    "error", [ConfigError("params.yaml: bad"), OSError(28, "No space left on device", "model.onnx")]
)
def test_an_expected_error_is_one_line_with_status_1(error, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_stage(fail)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {error}\n"


# Ctrl-C.


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_during_a_write_exits_130_and_leaves_complete_files(workspace, tmp_path, stage):
    arguments = [*STAGES[stage], str(tmp_path / "target")]
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK_IN_A_WRITE, stage, *arguments],
        cwd=workspace,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PRESAGE_REGISTRY": f"sqlite:///{tmp_path}/registry/mlflow.db"},
    )
    assert process.stdout is not None
    begun = any(line.startswith("writing") for line in iter(process.stdout.readline, ""))
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=60)

    assert begun
    assert process.returncode == 130
    assert message.endswith(
        "interrupted; no file is incomplete, run the command again to continue\n"
    )
    assert "Traceback" not in message
    assert not list(tmp_path.rglob("*.partial"))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if tmp_path / "registry" not in path.parents]
