"""Training, evaluation, gate and registration of placement releases."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from presage.cli.training.models.group import app
from presage.errors import ConfigError, ReleaseError
from presage.models.registry.registry import Registry
from presage.placement.stage.paired_evaluation import PairedRatio, paired_ratio
from presage.placement.stage.placement_gate import (
    NOT_PROMOTED,
    PROMOTED,
    PlacementGatePolicy,
    decide,
)
from presage.placement.stage.promote_placement import _known, promote_placement
from presage.placement.stage.release_kind import PLACEMENT
from presage.placement.stage.train_placement import PlacementSettings, train_placement
from presage.schedulers.policies.failures.learnt.learnt_policy import Learnt
from presage.schedulers.policies.failures.learnt.placement_release import (
    load_placement_release,
    placement_release_id,
)

SMALL = PlacementSettings(labelled=2, validated=2, epochs=1, evaluated=20)
POLICY = PlacementGatePolicy(resamples=200)
HEURISTICS = {"random", "first-fit", "least-failing", "matched", "tuned order", "expected"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("placement")
    train_placement(SMALL, folder)
    return folder


def improved(trained, folder, factor, seed=0):
    """Return a release with makespans that are so much shorter than those of the heuristics."""
    content = json.loads((trained / "release.json").read_text())
    shortest = np.min(list(content["makespans_s"].values()), axis=0)
    content["makespans_s"]["learnt"] = (factor * shortest).tolist()
    content["training"]["seed"] = seed
    content["release_id"] = placement_release_id(content)
    folder.mkdir()
    (folder / "placement.onnx").write_bytes((trained / "placement.onnx").read_bytes())
    (folder / "release.json").write_text(json.dumps(content))
    return load_placement_release(folder)


def test_the_same_seed_gives_the_same_onnx_hash_and_the_policy_loads_it(trained, tmp_path):
    again = train_placement(SMALL, tmp_path)
    release = load_placement_release(trained)
    assert again["onnx_sha256"] == release.manifest["files"]["placement.onnx"]
    assert again["release_id"] == release.release_id
    assert release.manifest["metrics"].keys() == HEURISTICS
    assert Learnt(str(trained)).warning == ""


def test_another_seed_is_another_release(trained, tmp_path):
    again = train_placement(replace(SMALL, seed=1), tmp_path)
    assert again["release_id"] != load_placement_release(trained).release_id


def champion_id(registry):
    return registry.resolve("champion").release_id


def ratio(low, high, *, is_tie=False):
    return PairedRatio((low + high) / 2, low, high, is_tie)


@pytest.mark.parametrize(
    ("other", "outcome", "why"),
    [
        (ratio(0.95, 0.99), PROMOTED, "better than every heuristic"),
        (ratio(0.99, 1.001), NOT_PROMOTED, "not surely better than expected"),
        (ratio(1.01, 1.02), NOT_PROMOTED, "worse than expected"),
        (ratio(1.0, 1.0, is_tie=True), NOT_PROMOTED, "a tie with expected"),
    ],
)
def test_only_a_release_that_beats_every_heuristic_is_promoted(other, outcome, why):
    found = decide("a", None, {"random": ratio(0.5, 0.6), "expected": other}, "")
    assert found["outcome"] == outcome
    assert why in found["reason"]


def test_the_interval_of_paired_batches_is_that_of_the_ratio():
    rng = np.random.default_rng(1)
    base = rng.lognormal(0, 1, 500)
    found = paired_ratio(
        0.9 * base * rng.normal(1, 0.01, 500), base, confidence=0.95, resamples=500, seed=0
    )
    assert found.low < 0.9 < found.high < 0.91
    assert paired_ratio(base, base, confidence=0.95, resamples=100, seed=0).is_tie


def test_registration_promotion_rollback_and_journal_are_those_of_the_predictors(trained, tmp_path):
    uri, target = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "decision.json"
    tie = load_placement_release(trained)
    refused = promote_placement(tie, target, uri=uri, policy=POLICY)
    assert refused["outcome"] == NOT_PROMOTED
    assert _known(tie, target, uri, POLICY)

    first = improved(trained, tmp_path / "first", 0.9)
    decided = promote_placement(first, target, uri=uri, policy=POLICY)
    assert decided["outcome"] == PROMOTED
    assert _known(first, target, uri, POLICY)
    registry = Registry(uri, PLACEMENT)
    assert champion_id(registry) == first.release_id

    second = improved(trained, tmp_path / "second", 0.8, seed=2)
    decided = promote_placement(second, target, uri=uri, policy=POLICY)
    assert decided["champion"] == first.release_id
    assert "the champion" in decided["figures"]
    assert decided["outcome"] == PROMOTED
    registry.rollback(reason="slow")
    assert champion_id(registry) == first.release_id
    withdrawn = promote_placement(second, target, uri=uri, policy=POLICY)
    assert "withdrawn by a person" in withdrawn["reason"]
    assert [one.verdict for one in registry.journal()] == ["gate", "gate", "rollback"]
    assert Registry(uri).versions() == []  # the predictors have another model

    registry.download(registry.resolve("champion").version, tmp_path / "downloaded")
    assert load_placement_release(tmp_path / "downloaded").release_id == first.release_id


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Function that runs `presage models ...` and returns its output."""
    monkeypatch.setenv("PRESAGE_REGISTRY", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments):
        result = CliRunner().invoke(app, [*arguments, "--model", "placement"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


def test_the_gate_of_a_folder_shows_every_ratio_and_registers_nothing(trained, tmp_path, call):
    text = call("gate", str(trained))
    for name in HEURISTICS:
        assert name in text
    assert "would be not promoted" in text
    good = improved(trained, tmp_path / "good", 0.9)
    decided = json.loads(call("gate", str(good.folder), "--json"))
    assert decided["outcome"] == PROMOTED
    assert decided["figures"].keys() == HEURISTICS
    assert not (tmp_path / "mlflow.db").exists()


def test_register_gate_and_diff_name_placement_releases(trained, tmp_path, call):
    folder = improved(trained, tmp_path / "good", 0.9).folder
    assert "is registered as version 1" in call("register", str(trained))
    assert "is registered as version 2" in call("register", str(folder))
    assert "would be promoted: better than every heuristic" in call("gate", "2")
    call("promote", "2", "--force", "--reason", "a test")
    assert "is the champion already" in call("gate", "champion")
    assert "the champion" in json.loads(call("gate", "1", "--json"))["figures"]

    text = call("diff", "1", "2")
    assert "makespan over expected" in text
    again = json.loads(call("diff", "1", "2", "--json"))
    assert {row["metric"] for row in again["metrics"]} == {
        f"makespan over {name}" for name in HEURISTICS
    }
    other = improved(trained, tmp_path / "other", 0.9, seed=7).folder
    call("register", str(other))
    assert json.loads(call("diff", "2", "3", "--json"))["made_of"] == {"training.seed": [0, 7]}


def test_feature_tables_and_folders_of_predictors_are_errors(trained, call):
    with pytest.raises(ConfigError, match="--features: placement releases are compared on"):
        call("gate", str(trained), "--features", "data/features")
    with pytest.raises(ReleaseError, match="not a placement release"):
        call("register", "data/pretrained/release")
