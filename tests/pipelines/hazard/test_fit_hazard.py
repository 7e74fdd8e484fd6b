"""The stage of the hazard model: the published trace meets the bars, and a clone without it."""

from __future__ import annotations

import json
import shutil

import pytest
from scipy.stats import chi2

from presage.errors import ConfigError, TableError
from presage.features.hazard.hazard_file import read_hazard_model
from presage.models.hazard.hazard_fit import HazardSettings
from presage.pipelines.hazard import fit_hazard
from presage.pipelines.stages.stage import read_params
from tests.pipelines.public_files import ROOT, real

PRETRAINED = ROOT / "data/pretrained/hazard"


def run(folder, target, *more):
    fit_hazard.main(["--faults", str(folder), "--target", str(target), *map(str, more)])


def test_hazards_after_day_200_meet_the_bars_with_all_choices_made_before(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run(real("faults"), tmp_path / "made")
    test = json.loads((tmp_path / "made/metrics.json").read_text())["test"]

    assert read_params("hazard", HazardSettings).until_day == 200
    assert test["log_loss"] <= 0.0229 < test["log_loss_constant"]
    assert test["share_in_top_5_percent"] >= 0.24
    off = [
        (one["rows"] * (one["observed"] - one["predicted"])) ** 2
        / (one["rows"] * one["predicted"] * (1 - one["predicted"]))
        for one in test["deciles"]
    ]
    assert chi2.sf(sum(off), len(off)) > 0.05
    # It is the model that is installed, byte by byte.
    for name in ("hazard.json", "metrics.json"):
        assert (tmp_path / "made" / name).read_bytes() == (PRETRAINED / name).read_bytes()


def test_without_a_history_the_pretrained_model_is_used(tmp_path):
    run(tmp_path / "absent", tmp_path / "made", "--pretrained", PRETRAINED)

    assert read_hazard_model(tmp_path / "made/hazard.json") == read_hazard_model(
        PRETRAINED / "hazard.json"
    )
    with pytest.raises(TableError, match="put a fault history there"):
        run(tmp_path / "absent", tmp_path / "made")


def test_the_history_of_a_site_is_fitted(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    events = [
        {"node_id": f"n{node}", "event_time": day + part, "event_type": kind, "fault_type": {}}
        for node in range(8)
        for day in range(node, 100, 20)
        for part, kind in ((0.25, "fault_start"), (0.5, "fault_end"))
    ]
    (tmp_path / "fault_trace.json").write_text(json.dumps({"nodes": 16, "events": events}))
    run(tmp_path, tmp_path / "made")
    model = read_hazard_model(tmp_path / "made/hazard.json")

    assert (model.units, model.days, model.failures) == (16, 88.0, 40)
    assert 0.01 < model.base_per_day < 40 / (16 * 88)  # the rest are follow-ups
    assert "test" not in json.loads((tmp_path / "made/metrics.json").read_text())


def test_corrupt_inputs_are_reported_in_one_line(tmp_path):
    (tmp_path / "fault_trace.json").write_text("[]")
    with pytest.raises(TableError, match=r"fault_trace\.json: is not a list of fault events"):
        run(tmp_path, tmp_path / "made")
    broken = tmp_path / "broken"
    shutil.copytree(PRETRAINED, broken)
    (broken / "metrics.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        run(tmp_path / "absent", tmp_path / "made", "--pretrained", broken)
    (broken / "metrics.json").unlink()
    with pytest.raises(ConfigError, match="restore it with git"):
        run(tmp_path / "absent", tmp_path / "made", "--pretrained", broken)
