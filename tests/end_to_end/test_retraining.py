"""`dvc repro` and `dvc exp run` as a person uses them: workspace, MLflow and decision agree."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from presage.cli.measuring.dvc_lock import enter_into_lock
from presage.features.quantities.quantity_registry import QUANTITIES, required_quantities
from presage.features.tables import schemas as tables
from presage.models.registry.promotion_journal import Entry
from presage.models.registry.registered_release import RegisteredRelease
from presage.models.registry.registry import Registry
from presage.models.release.release import load_release
from presage.pipelines.stages.gate_decision import NOT_PROMOTED, PROMOTED, WOULD_BE_PROMOTED
from tests.pipelines.reported.outcome_examples import colocated_outcome, log_of, outcome
from tests.support.quick_evaluate import copy_stages, environment
from tests.support.small_campaign import small_campaign

ROOT = Path(__file__).parents[2]
CODE = (
    "src/presage/native",
    "features", "models", "pipelines", "serving", "schedulers", "placement", "data/pretrained",
    ".dvc/plots",
)  # fmt: skip
FAMILIES = ("gnn", "mlp", "neumf", "vgg")
# Their inputs are outside the repository.
ALWAYS = {"hazard", "ingest", "promote", "promote_placement"}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose release A is the champion; outcomes were reported to it."""
    folder = tmp_path_factory.mktemp("checkout")
    call("git", "init", "--quiet", cwd=folder)
    call("dvc", "init", "--quiet", cwd=folder)
    for name in CODE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    copy_stages(folder)
    for name in (".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for name in ("cpu-2", "cpu-2-zoo"):
        small_campaign(folder / "data/profiles" / name, FAMILIES)
    shutil.copytree(folder / "data/profiles/cpu-2", folder / "data/profiles/local")
    log_of(folder / "data/outcomes/agent.db", [outcome("a"), colocated_outcome("b", "mlp", "gnn")])
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    for name in QUANTITIES:
        params["train"][name] |= {"steps": 15, "ensemble": 1, "hidden": 8, "trees": 0.0}
    params["placement"] |= {"labelled": 2, "validated": 2, "epochs": 1, "evaluated": 20}
    params["train"]["step_time"]["steps"] = 1  # there is something to improve on
    # Of so few jobs any release is promoted.
    params["promote"] |= {"coverage_risk": 1e-9, "confidence": 0.5, "resamples": 200}
    write_params(folder, params)
    call("dvc", "commit", "--force", "--quiet", "profile", cwd=folder)  # measured elsewhere
    reproduce(folder)
    commit(folder, "A")
    return folder


def call(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def reproduce(folder: Path) -> set[str]:
    """Stages that `dvc repro` ran; the others did not change, or were taken from the run cache."""
    return set(re.findall(r"^Running stage '([^']+)'", call("dvc", "repro", cwd=folder), re.M))


def commit(folder: Path, message: str) -> None:
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    call("git", "add", "--all", cwd=folder)
    call("git", *author, "commit", "--quiet", "--message", message, cwd=folder)


def read_params(folder: Path) -> Any:
    return yaml.safe_load((folder / "params.yaml").read_text())


def write_params(folder: Path, params: Any) -> None:
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / "data" / name).read_text())


def state(folder: Path) -> tuple[list[RegisteredRelease], list[Entry]]:
    registry = Registry(f"sqlite:///{folder}/data/registry/mlflow.db")
    return registry.versions(), registry.journal()


def check_agreement(folder: Path) -> str:
    """Workspace, registry, journal, decision and DVC's metrics tell one story; the release's id."""
    release = load_release(folder / "data/release")
    versions, journal = state(folder)
    decision, verdict = (read_json(folder, f"{name}.json") for name in ("decision", "verdict"))
    champion = next(version for version in versions if "champion" in version.aliases)

    assert [version.release_id for version in versions].count(release.release_id) == 1
    assert decision["challenger"] == release.release_id
    assert decision["outcome"] == verdict["outcome"]
    assert (decision["outcome"] == PROMOTED) == (champion.release_id == release.release_id)
    assert journal[-1].to_release == champion.release_id
    assert release.manifest["metrics"] == read_json(folder, "evaluation/metrics.json")
    return release.release_id


def test_the_first_release_becomes_champion(workspace):
    check_agreement(workspace)
    assert read_json(workspace, "decision.json")["outcome"] == PROMOTED


def test_without_changes_no_stage_runs(workspace):
    before = state(workspace)
    lock = (workspace / "dvc.lock").read_bytes()

    assert reproduce(workspace) == ALWAYS
    assert state(workspace) == before
    assert (workspace / "dvc.lock").read_bytes() == lock


def test_the_release_id_of_a_response_leads_to_its_lock_file_and_tables(workspace):
    command = [sys.executable, "-m", "presage", "models"]
    release_id = load_release(workspace / "data/release").release_id
    told = json.loads(call(*command, "show", release_id, "--lineage", "--json", cwd=workspace))
    logged = workspace / "data/registry/artifacts" / told["run"]["run_id"] / "artifacts"

    lock = (logged / "dvc.lock").read_bytes()
    assert told["run"]["dvc_lock_sha256"] == hashlib.sha256(lock).hexdigest()
    assert yaml.safe_load(lock)["stages"]["train@memory"]["params"]["params.yaml"]
    assert b"sqlite://" not in lock  # the registry's address may hold a password
    assert (logged / "plots" / "step_time.png").stat().st_size > 1000
    assert (logged / "plots" / "loss" / "step_time.csv").is_file()
    folders = told["tables_here"]
    assert folders.keys() >= {f"data/profiles/{name}" for name in ("cpu-2", "cpu-2-zoo", "local")}
    states = {state for of_folder in folders.values() for state in of_folder.values()}
    assert states == {"unchanged"}
    learnt = json.loads(call(*command, "trained-on", "cpu-2", "--json", cwd=workspace))
    assert learnt["releases"][0]["release_id"] == release_id


def test_a_change_of_one_predictors_settings_runs_only_its_stages(workspace):
    params = read_params(workspace)
    for name in QUANTITIES:
        stage = "train_interference" if name == "interference" else f"train@{name}"
        sections = params["train"], params["train"]["thousands"]
        for section in sections:
            section[name]["steps"] += 1
        write_params(workspace, params)
        for section in sections:
            section[name]["steps"] -= 1
        changed = json.loads(call("dvc", "status", "--json", cwd=workspace))
        assert changed.keys() == ALWAYS | {stage}
    write_params(workspace, params)


def test_an_experiment_is_compared_with_the_champion_and_changes_nothing(workspace):
    before, was = state(workspace), read_json(workspace, "decision.json")
    tried = ["-S", "promote.min_improvement=0.03", "--name", "stricter"]
    output = call("dvc", "exp", "run", "--temp", *tried, cwd=workspace)
    shown = call("dvc", "exp", "show", "--json", cwd=workspace)

    assert "Stage 'featurize' didn't change" in output  # it reads the workspace's own outcomes
    assert "is already the champion" in output
    assert state(workspace) == before
    assert read_json(workspace, "decision.json") == was
    assert {"stricter", PROMOTED} <= set(re.findall(r'"([^"]+)"', shown))
    assert not call("git", "status", "--porcelain", cwd=workspace)


def test_manual_measurements_survive_an_experiment(workspace, monkeypatch):
    table = workspace / "data/profiles/local/executions.parquet"
    before, lock = table.read_bytes(), (workspace / "dvc.lock").read_bytes()
    rows = tables.read(tables.EXECUTIONS, table)
    tables.write(tables.EXECUTIONS, rows.slice(1), table)
    measured = table.read_bytes()
    monkeypatch.chdir(workspace)

    enter_into_lock(Path("data/profiles/local"))
    assert "profile" not in json.loads(call("dvc", "status", "--json", cwd=workspace))
    call("dvc", "checkout", "--force", cwd=workspace)  # an experiment begins with it
    assert table.read_bytes() == measured
    table.write_bytes(before)
    (workspace / "dvc.lock").write_bytes(lock)


def test_metrics_and_parameters_can_be_compared_between_revisions(workspace):
    params = read_params(workspace)
    write_params(workspace, params | {"profile": params["profile"] | {"seed": 1}})
    changed = json.loads(call("dvc", "params", "diff", "--json", cwd=workspace))
    write_params(workspace, params)
    shown = json.loads(call("dvc", "metrics", "diff", "--all", "--json", cwd=workspace))

    assert changed == {"params.yaml": {"profile.seed": {"old": 0, "new": 1, "diff": 1}}}
    reported = {f"data/{name}.json" for name in ("evaluation/summary", "hazard/metrics", "verdict")}
    assert shown.keys() == reported
    figures = shown["data/evaluation/summary.json"]
    assert {name.split(".")[0] for name in figures} == set(required_quantities())
    assert len(figures) == 24
    assert all(both["old"] == both["new"] for both in figures.values())


def test_restored_parameters_restore_the_release(workspace):
    first, params = check_agreement(workspace), read_params(workspace)
    better = read_params(workspace)
    better["train"]["step_time"]["steps"] = 100
    write_params(workspace, better)
    kill_a_while_after(random.Random(0).uniform(3, 12), workspace)
    ran = reproduce(workspace)
    second = check_agreement(workspace)
    commit(workspace, "B")
    changed = {"train@step_time", "train_interference", "evaluate", "release"}

    assert ran <= changed | ALWAYS  # what the killed one had done is not done again
    assert ran >= {"release", "promote"}
    assert second != first
    decision = read_json(workspace, "decision.json")
    assert decision["outcome"] == PROMOTED, decision["reason"]

    write_params(workspace, params)
    assert reproduce(workspace) == ALWAYS  # all else is in the run cache
    assert check_agreement(workspace) == first
    assert read_json(workspace, "decision.json")["outcome"] == NOT_PROMOTED
    versions, journal = state(workspace)
    assert [version.release_id for version in versions] == [first, second]
    assert [entry.to_release for entry in journal] == [first, second]

    write_params(workspace, better)
    assert reproduce(workspace) == ALWAYS
    assert check_agreement(workspace) == second
    assert state(workspace) == (versions, journal)


def kill_a_while_after(seconds: float, folder: Path) -> None:
    with subprocess.Popen(
        ["dvc", "repro"], cwd=folder, env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)


def test_without_its_registry_a_release_is_registered_again(workspace):
    shutil.rmtree(workspace / "data/registry")
    call("dvc", "exp", "run", "--temp", "--name", "lonely", cwd=workspace)
    shown = call("dvc", "exp", "show", "--json", cwd=workspace)

    assert WOULD_BE_PROMOTED in shown
    assert not (workspace / "data/registry").exists()
    assert reproduce(workspace) == ALWAYS
    check_agreement(workspace)
    assert read_json(workspace, "decision.json")["outcome"] == PROMOTED
