"""Fifth quantity, added only through the registry: trained, evaluated, released and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from presage.cli.output.forecasts import print_forecasts
from presage.errors import InvalidJobError
from presage.features.device.device import catalogue
from presage.features.placement import Placement
from presage.features.quantities.quantity import Quantity
from presage.features.quantities.quantity_registry import (
    INTERFERENCE,
    POWER,
    QUANTITIES,
    job_quantities,
    register,
)
from presage.models.drift.drift_test import DriftMonitor, DriftPolicy, judged_quantities
from presage.models.gate.holdout_score import score_release
from presage.models.gate.release_gate import NOT_COMPARED, GatePolicy, decide
from presage.models.registry.mlflow_model_files import make_signature
from presage.models.release.release import Release, load_release, release_files
from presage.models.training import baselines
from presage.models.training.fit import FitConfig
from presage.pipelines.benchmark.tasks import tasks
from presage.pipelines.evaluation.assessment import assess
from presage.pipelines.evaluation.report.evaluation_page import render as render_page
from presage.pipelines.stages import build_release, evaluate, featurize, train, train_interference
from presage.pipelines.stages.fit_settings import FineTuning, Settings
from presage.serving.client.client import PresageClient
from presage.serving.codec.wire_outcomes import check_outcome, write_report
from presage.serving.oip.messages import SERVICE_NAME, message
from presage.serving.outcomes.judged import Judge
from presage.serving.outcomes.outcome import Outcome
from presage.serving.predictor.fallback import exclusive_device
from presage.serving.predictor.mlflow_model import ReleaseModel
from presage.serving.predictor.predictor import Predictor
from presage.serving.predictor.served_release import check_change
from tests.models.conftest import POLICY
from tests.pipelines.conftest import required_solo_quantities, without_onnx
from tests.serving.conftest import make_job, make_models
from tests.serving.oip.requests import features, raw_request
from tests.serving.support.running_server import RunningServer, start_server
from tests.support.small_campaign import small_campaign

ENERGY = Quantity(
    name="energy_per_step",
    unit="joules",
    title="Energy per step",
    label="energy",
    column="energy_per_step_j",
    forecast_field="energy_per_step_j",
    prior="roofline_s",
    inputs=("batch_size", "share", "roofline_s", "op_count"),
    negligible=1e-3,
    gate_tolerance={"mape": 0.5},
)
WATTS = 40.0
TINY = FitConfig(
    hidden=8, steps=40, learning_rate=0.02, weight_decay=0.0, ensemble=1, seed=0, batch=64
)
SETTINGS = Settings(TINY, TINY, 10**6, FineTuning(5, 0.01, pull=300.0, batch=32))
GATE = GatePolicy(**(POLICY | {"coverage_points": 45, "min_jobs": 1000}))
CPU = catalogue()["cpu-2"]
PLACEMENTS = [Placement(make_job(f"job-{size}", batch_size=size), CPU) for size in (8, 64)]


@dataclass(frozen=True)
class Workspace:
    """Outputs of the stages: without the quantity in ``before``, with it in ``after``."""

    models: Path
    evaluation: Path
    solo: pd.DataFrame
    interference: pd.DataFrame
    before: Path
    after: Path


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    root = tmp_path_factory.mktemp("quantity")
    features, models = root / "features", root / "models"
    campaign = small_campaign(root / "cpu-2")
    solo, interference = _featurized(campaign, features)
    forecasts, by_hand = {}, make_models()  # to export four networks takes seconds
    with without_onnx():
        for name, quantity in required_solo_quantities().items():
            trained = replace(train.train(solo, quantity, SETTINGS, {}), onnx=by_hand[name])
            trained.write(models / name)
            forecasts[name] = trained.forecasts
        together = train_interference.train(solo, interference, forecasts, SETTINGS, {})
        replace(together, onnx=by_hand[INTERFERENCE.name]).write(models / INTERFERENCE.name)
    _released(features, models, root / "evaluation-before", root / "before")
    register(ENERGY)
    try:
        _featurized(campaign, features)
        solo = _with_energy(features / "solo.parquet")
        train.train(solo, ENERGY, SETTINGS, {}).write(models / ENERGY.name)
        _released(features, models, root / "evaluation", root / "after")
        yield Workspace(
            models, root / "evaluation", solo, interference, root / "before", root / "after"
        )
    finally:
        del QUANTITIES[ENERGY.name]


def _featurized(campaign: Path, features: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    featurize.featurize([campaign], features)
    return evaluate.read_features(features)


def _with_energy(path: Path) -> pd.DataFrame:
    """A synthetic measurement in the column that featurize made for it."""
    solo = pd.read_parquet(path)
    assert solo[ENERGY.column].isna().all()
    noise = np.random.default_rng(0).lognormal(0, 0.1, len(solo))
    solo[ENERGY.column] = WATTS * solo["step_time_median_s"] * noise
    solo.to_parquet(path)
    return solo


def _released(features: Path, models: Path, evaluation: Path, target: Path) -> None:
    folders = ["--features", str(features), "--models", str(models)]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("boosted_trees", "linear"):  # seconds, and no network of ours
            patch.delitem(baselines.BASELINES, name)
        evaluate.main([*folders, "--target", str(evaluation)])
    build_release.assemble_release(features, models, evaluation, target)


@pytest.fixture(scope="module")
def before(workspace: Workspace) -> Release:
    return load_release(workspace.before)


@pytest.fixture(scope="module")
def after(workspace: Workspace) -> Release:
    return load_release(workspace.after)


@pytest.fixture(scope="module")
def predictor(after: Release) -> Predictor:
    return Predictor(after)


@pytest.fixture(scope="module")
def server(after: Release) -> Iterator[RunningServer]:
    with start_server(after) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[PresageClient]:
    with PresageClient(server.target) as connected:
        yield connected


def test_it_is_evaluated_and_shown_like_the_others(workspace):
    metrics = json.loads((workspace.evaluation / "metrics.json").read_text())
    page = render_page(assess(metrics, evaluate.read_forecasts(workspace.models)))

    assert list(metrics[ENERGY.name]["job"]) == sorted(metrics["memory"]["job"])
    assert json.loads((workspace.evaluation / "promises.json").read_text())[ENERGY.name][""]
    assert (workspace.evaluation / "plots/error_by_family/energy_per_step.csv").is_file()
    assert ENERGY.title in page
    assert " joules" in page


def test_a_release_holds_it_and_answers_its_probes(after, predictor):
    assert "energy_per_step.onnx" in release_files(after.folder)
    assert after.manifest["predictors"][ENERGY.name]["unit"] == "joules"
    assert after.trained_devices[ENERGY.name] == {"cpu-2"}
    predictor.check_probes()
    predictor.warm_up()


def test_a_release_from_before_it_loads_and_predicts_the_rest(before, predictor):
    earlier = Predictor(before)

    earlier.check_probes()
    assert ENERGY.name not in before.predictors
    assert earlier.predict(PLACEMENTS)[0].additional == {}
    check_change(predictor, earlier, max_change=2.0)
    check_change(earlier, predictor, max_change=2.0)
    assert ENERGY.name not in predictor.changes(earlier)


def test_the_gate_takes_a_release_for_a_quantity_that_is_new(workspace, before, after):
    tables = workspace.solo, workspace.interference
    old, new = score_release(before, *tables), score_release(after, *tables)

    first = decide(old, new, GATE)
    assert first.promote
    assert first.reason == "no figure is worse; new predictors: energy_per_step"
    rows = [row for row in first.rows if row.predictor == ENERGY.name]
    assert {row.verdict for row in rows if row.metric == "mape"} == {NOT_COMPARED}
    (mape,) = (
        row
        for row in decide(new, new, GATE).rows
        if (row.predictor, row.metric, row.slice_name) == (ENERGY.name, "mape", "")
    )
    assert mape.champion is not None
    assert mape.at_most == pytest.approx(1.5 * mape.champion)


@pytest.mark.parametrize("tolerance", [{"mode": 0.1}, {"mape": -0.1}])
def test_a_tolerance_that_the_gate_does_not_know_is_refused(workspace, monkeypatch, tolerance):
    monkeypatch.setitem(QUANTITIES, ENERGY.name, replace(ENERGY, gate_tolerance=tolerance))

    with pytest.raises(ValueError, match="quantity 'energy_per_step': gate_tolerance="):
        replace(GATE)


def test_it_is_predicted_in_process(predictor):
    answers = predictor.predict(PLACEMENTS)

    for answer in answers:
        forecast = answer.additional[ENERGY.forecast_field]
        assert forecast.unit == "joules"
        assert 0 < forecast.low <= forecast.median <= forecast.high
        assert list(answer.by_field()) == [n for n in job_quantities() if n != POWER.forecast_field]


def test_it_is_predicted_over_grpc_in_the_generic_field(client, predictor):
    answers = predictor.predict(PLACEMENTS)

    assert client.predict(PLACEMENTS) == answers
    matrix = client.predict_matrix(PLACEMENTS)
    for told, answer in zip(matrix, answers, strict=True):
        ours, theirs = (row.additional[ENERGY.forecast_field] for row in (told, answer))
        assert ours.median == pytest.approx(theirs.median, rel=1e-4)
        assert replace(ours, median=0, low=0, high=0) == replace(theirs, median=0, low=0, high=0)


def test_it_is_a_model_of_the_open_inference_protocol(server, predictor):
    import grpc

    asked = raw_request(ENERGY.name, {"features": features(2)})
    with grpc.insecure_channel(server.target) as channel:
        infer: Any = channel.unary_unary(
            f"/{SERVICE_NAME}/ModelInfer",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message("ModelInferResponse").FromString,
        )
        answer = infer(asked)
    found = np.frombuffer(answer.raw_output_contents[0], dtype="<f4").reshape(2, -1)

    assert answer.parameters["unit"].string_param == "joules"
    expected = predictor.models[ENERGY.name].quantiles({"features": features(2)})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_a_job_took_is_reported_and_judged(predictor):
    outcome = Outcome(
        "key", PLACEMENTS[0].job, CPU, release_id=predictor.release_id,
        additional={ENERGY.forecast_field: 1e9},
    )  # fmt: skip
    (sent,) = write_report([outcome]).outcomes
    check_outcome(sent, predictor.known_device, "outcome")
    ((judged,),) = Judge(predictor).judge([sent])
    drift = DriftMonitor(predictor.guarantees, DriftPolicy(false_alarm_outcomes=100))
    drift.add([judged])

    assert (judged.quantity, judged.measured) == (ENERGY.forecast_field, 1e9)
    assert judged_quantities().index(ENERGY.forecast_field) > 0
    assert ENERGY.forecast_field in {row.quantity for row in drift.rows()}


@pytest.mark.parametrize(
    ("additional", "match"),
    [
        (
            {"energy": 1.0},
            "additional names a quantity that is not .*: power_w, energy_per_step_j",
        ),
        ({"energy_per_step_j": -1.0}, r"additional\['energy_per_step_j'\]=-1.0, must be a finite"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(predictor, workspace, additional, match):
    outcome = Outcome("key", PLACEMENTS[0].job, CPU, additional=additional)
    (sent,) = write_report([outcome]).outcomes

    with pytest.raises(InvalidJobError, match=match):
        check_outcome(sent, predictor.known_device, "outcome")


def test_without_an_answer_nothing_bounds_it(workspace):
    forecast = exclusive_device(CPU).additional[ENERGY.forecast_field]

    assert forecast.median == np.inf
    assert forecast.unit == "joules"


def test_mlflow_and_the_command_line_show_it(predictor, capsys):
    rows = pd.DataFrame([{"job": asdict(PLACEMENTS[0].job), "device": "cpu-2"}])
    (row,) = ReleaseModel(predictor).predict(rows)
    jobs = [placement.job for placement in PLACEMENTS]
    answers = predictor.predict(PLACEMENTS)
    print_forecasts(jobs, answers, CPU, as_json=True)
    content = json.loads(capsys.readouterr().out)
    print_forecasts(jobs, answers, CPU, as_json=False)

    assert {f"energy_per_step_j_{which}" for which in ("median", "low", "high")} <= row.keys()
    assert "energy_per_step_j_median" in make_signature().outputs.input_names()
    assert content["jobs"][0]["energy_per_step_j"]["unit"] == "joules"
    assert "energy" in capsys.readouterr().out


def test_it_has_a_benchmark_task(workspace):
    task = tasks()["energy-per-step"]

    assert task.unit == "joules"
