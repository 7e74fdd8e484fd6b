"""A killed stage leaves the old or the new outputs, and can be run again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from presage.features.quantities.quantity_registry import QUANTITIES, solo_quantities
from presage.models.registry.registry import Registry
from presage.models.release.release import load_release
from presage.pipelines.trained_quantities import UNTRAINED
from tests.pipelines.reported.outcome_examples import colocated_outcome, log_of, outcome
from tests.support.small_campaign import small_campaign

ROOT = Path(__file__).parents[3]
REGISTRY = "sqlite:///data/registry/mlflow.db"
FAMILIES = ("gnn", "mlp", "neumf", "vgg")
FEATURES, MODELS = ("--features", "data/features"), ("--models", "data/models")
# Each stage's arguments, its output, and the file without which the output is incomplete.
WORK: dict[str, tuple[tuple[str, ...], str, str]] = {
    "ingest": (("--profiles", "data/profiles", "--to"), "data/outcomes/tables", "jobs.parquet"),
    "featurize": (("data/profiles/cpu-2", "--target"), "data/features", "solo.parquet"),
    **{
        f"train {name}": (
            (name, *FEATURES, "--target"),
            f"data/models/{name}",
            UNTRAINED if quantity.is_optional else "model.onnx",  # no processor measures power
        )
        for name, quantity in solo_quantities().items()
    },
    "train_interference": (
        (*FEATURES, *MODELS, "--target"), "data/models/interference", "model.onnx",
    ),
    "evaluate": ((*FEATURES, *MODELS, "--target"), "data/evaluation", "metrics.json"),
    "release": (
        (*FEATURES, *MODELS, "--evaluation", "data/evaluation", "--target"),
        "data/release", "release.json",
    ),
    "promote": (("data/release", "data/features"), "data/decision.json", ""),
}  # fmt: skip
KILLED = [name for name in WORK if name not in ("train memory", "train compute_utilization")]
KILLS = {"train step_time": 3, "train_interference": 3, "promote": 4}  # others are quick
MOST_KILLS = 8
EARLIER = b"of an earlier run"

pytestmark = pytest.mark.timeout(600)

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a stage in a workspace; perhaps not to its end."""
    command = [sys.executable, "-m", "tests.pipelines.stages.stage_forks"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def ask(
            stage: str, folder: Path, *, at: int | None = None, after_s: float | None = None
        ) -> dict[str, Any]:
            arguments = [*WORK[stage][0], WORK[stage][1]]
            question = {"stage": stage, "arguments": arguments, "folder": str(folder)}
            requests.write(json.dumps({**question, "at": at, "after_s": after_s}) + "\n")
            requests.flush()
            began_s = time.monotonic()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer | {"taken_s": time.monotonic() - began_s}

        yield ask
        requests.close()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def calm(tmp_path_factory, run) -> Path:
    """Workspace after complete runs of every stage, with the number of changes of each."""
    folder = Path(tmp_path_factory.mktemp("calm"))
    small_campaign(folder / "data/profiles/cpu-2", FAMILIES)
    log_of(folder / "data/outcomes/agent.db", [outcome("a"), colocated_outcome("b", "mlp", "gnn")])
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    for predictor in QUANTITIES:
        params["train"][predictor] |= {"steps": 15, "ensemble": 1, "hidden": 8, "trees": 0.0}
    params["promote"] |= {"coverage_risk": 1e-9}  # of so few jobs any release is promoted
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    done = {}
    for stage in WORK:
        done[stage] = run(stage, folder)
        assert done[stage]["code"] == 0, (folder / "stage.log").read_text()
    (folder / "done.json").write_text(json.dumps(done))
    return folder


def content(path: Path) -> dict[str, bytes]:
    """Return the files at or below a path, without hidden ones, which no stage reads."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    shown = [f for f in files if f.is_file() and not any(p.startswith(".") for p in f.parts)]
    return {str(f.relative_to(path)): f.read_bytes() for f in shown}


@pytest.mark.parametrize("stage", KILLED)
def test_a_killed_stage_leaves_complete_outputs_and_repeats_with_equal_bytes(
    stage, calm, run, tmp_path, monkeypatch
):
    draw = random.Random(stage)
    made, marker = WORK[stage][1:]
    folder = tmp_path / "workspace"
    shutil.copytree(calm, folder)
    target, expected = folder / made, content(calm / made)
    complete_run = json.loads((calm / "done.json").read_text())[stage]
    kills = KILLS.get(stage, MOST_KILLS)
    points: list[dict[str, Any]] = [
        {"at": at}
        for at in draw.sample(range(complete_run["changes"]), min(kills, complete_run["changes"]))
    ]
    points += [{"after_s": draw.uniform(0, complete_run["taken_s"])} for _ in range(kills // 3)]
    earlier = dict.fromkeys(expected, EARLIER)

    shutil.rmtree(folder / "data/registry")
    for number, point in enumerate(points):
        clear(target)
        before = {}
        if number % 2:
            before = earlier
            for name, written in earlier.items():
                path = target / name if marker else target
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(written)
        died = run(stage, folder, **point)
        if died["signal"] != signal.SIGKILL:  # it came to its end before that
            assert died["code"] == 0
            shutil.rmtree(folder / "data/registry", ignore_errors=True)
        found = content(target)
        looks_complete = found if not marker or marker in found else {}
        assert looks_complete in ({}, before, expected), f"{point}: {sorted(found)}"

    repeated = run(stage, folder)
    assert repeated["code"] == 0, (folder / "stage.log").read_text()
    assert content(target) == expected
    if stage == "promote":
        check_registry(folder, monkeypatch)


def check_registry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the release has one version, the champion of the journal's last entry."""
    monkeypatch.chdir(folder)
    registry = Registry(REGISTRY)
    (only,) = registry.versions()
    (entry,) = registry.journal()
    assert registry.champion() == only
    assert entry.to_release == only.release_id == load_release(Path("data/release")).release_id


def clear(target: Path) -> None:
    """Remove outputs as DVC does before a stage."""
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
