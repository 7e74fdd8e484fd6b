"""Registered releases with MLflow's own commands, as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import asdict
from typing import Any

import pandas as pd
import pytest

from presage.errors import InvalidJobError
from presage.features.colocation import Colocation
from presage.features.device.device import Share
from presage.features.placement import Placement
from presage.models.registry.registry import Registry
from presage.models.registry.uri import database_path
from presage.serving.predictor.mlflow_model import ReleaseModel
from presage.serving.predictor.predictor import Predictor
from tests.models.mlflow_server import wait_until_answers
from tests.serving.conftest import make_job
from tests.serving.support.processes import free_port

MODEL = "models:/presage@champion"
JOBS = [make_job("one"), make_job("two", batch_size=64), make_job("three")]
# A pair on one device, one of the two as text, and a job by itself.
ROWS: list[dict[str, Any]] = [
    {"job": asdict(JOBS[0]), "device": "cpu-2", "colocation": "pair"},
    {"job": json.dumps(asdict(JOBS[1])), "device": "cpu-2", "colocation": "pair"},
    {"job": asdict(JOBS[2]), "device": "v100-16gb"},
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory, release):
    registry = Registry(f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db")
    registry.promote(registry.register(release, {}))
    return registry


@pytest.fixture(scope="module")
def environment(registry):
    """Environment with MLflow's programs on the path."""
    programs = os.path.dirname(sys.executable)  # noqa: PTH120
    return os.environ | {
        "MLFLOW_TRACKING_URI": registry.uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }


def forecasts(predictor, coverage=0.8):
    """Return Presage's own forecasts of the rows."""
    devices = [predictor.device(row["device"]) for row in ROWS]
    placed = [Placement(j, device) for j, device in zip(JOBS, devices, strict=True)]
    solo = predictor.predict(placed, coverage=coverage)
    pair = Colocation(devices[0], tuple(JOBS[:2]), (Share(mode="time-slice"),) * 2)
    return solo, predictor.predict_interference([pair], coverage=coverage)[0]


def check(rows, predictor, coverage=0.8):
    solo, pair = forecasts(predictor, coverage)
    assert [row["job_id"] for row in rows] == ["one", "two", "three"]
    assert {row["release_id"] for row in rows} == {predictor.release_id}
    for row, forecast in zip(rows, solo, strict=True):
        for name, one in forecast.by_field().items():
            for which in ("median", "low", "high"):
                assert row[f"{name}_{which}"] == pytest.approx(getattr(one, which), rel=1e-6)
            assert row[f"{name}_in_domain"] == one.in_domain
    for row, slowdown in zip(rows[:2], pair.slowdowns, strict=True):
        assert row["slowdown_high"] == pytest.approx(slowdown.high, rel=1e-6)
        assert (row["fits"], row["fit_probability"]) == (pair.fits, pair.fit_probability)
    assert "slowdown_median" not in rows[2]


def test_mlflow_models_predict_returns_presages_forecasts(environment, tmp_path, release):
    asked = tmp_path / "input.json"
    asked.write_text(json.dumps({"dataframe_records": ROWS, "params": {"coverage": 0.9}}))
    done = subprocess.run(
        [sys.executable, "-m", "mlflow", "models", "predict", "-m", MODEL, "-i", asked,
         "-t", "json", "--env-manager", "local", "-o", tmp_path / "output.json"],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "output.json").read_text())["predictions"]
    check(rows, Predictor(release), coverage=0.9)


def test_mlflow_models_serve_returns_presages_forecasts(environment, tmp_path, release, registry):
    port, log = free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", MODEL, "-p", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--env-manager", "local"], env=environment, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_until_answers(f"{url}/ping", process, log)
        check(ask(url, json.dumps({"dataframe_records": ROWS})), Predictor(release))
        example = artifacts(registry) / "serving_input_example.json"
        assert ask(url, example.read_text())[0]["job_id"] == "linear-classifier"
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(url, json.dumps({"dataframe_records": [{"job": {}, "device": "cpu-2"}]}))
        assert refused.value.code == 400
        assert "row 0: job: job.precision is not known" in refused.value.read().decode()
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def ask(url, content):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/invocations", content.encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)["predictions"]


def artifacts(registry):
    version = registry.champion()
    database = database_path(registry.uri)
    assert database is not None
    folder = database.parent / "artifacts" / version.run_id / "artifacts"
    return folder / "release"


def test_mlflows_files_lie_next_to_the_release_and_are_not_part_of_it(registry, release, tmp_path):
    stored = {path.name: path.stat().st_size for path in artifacts(registry).iterdir()}
    of_release = {path.name for path in release.folder.iterdir()}

    assert {"MLmodel", "input_example.json"} < stored.keys() - of_release
    assert sum(stored[name] for name in stored.keys() - of_release) < 20_000
    assert len(list(artifacts(registry).parent.rglob("*.onnx"))) == 4  # stored once
    (artifacts(registry) / "registered_model_meta").touch()  # which MLflow leaves there
    registry.download(1, tmp_path / "release")
    assert {path.name for path in (tmp_path / "release").iterdir()} == of_release


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"job": "{"}, "row 1: job: not JSON"),
        ({"device": "v100-16gb"}, "co-location 'pair' is on cpu-2, v100-16gb"),
    ],
)
def test_the_error_names_an_invalid_row(release, change, match):
    rows = pd.DataFrame([ROWS[0], ROWS[1] | change])
    with pytest.raises(InvalidJobError, match=match):
        ReleaseModel(Predictor(release)).predict(rows)
