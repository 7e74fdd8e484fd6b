from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from presage.features.errors import RegistryError
from presage.models.release import load_release
from presage.models_cli import app


@pytest.fixture
def call(two, monkeypatch):
    """Run `presage models ...`; an error surfaces as the exception that the main command maps."""
    monkeypatch.setenv("PRESAGE_REGISTRY", two.uri)
    monkeypatch.setenv("COLUMNS", "120")

    def invoke(*arguments):
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


@pytest.fixture
def ids(releases):
    return {name: release.release_id for name, release in releases.items()}


def test_list_shows_the_newest_first_with_its_aliases(call, ids):
    text = call("list")
    assert text.index(ids["good"]) < text.index(ids["poor"])
    assert "champion" in text

    rows = json.loads(call("list", "--json"))
    assert [row["release_id"] for row in rows] == [ids["good"], ids["poor"]]
    assert rows[1]["aliases"] == ["champion"]


def test_an_empty_registry_says_so(call, uri):
    assert "no release yet" in call("list", "--registry", uri)
    assert json.loads(call("list", "--registry", uri, "--json")) == []


def test_show_prints_metrics_devices_and_digest(call, ids):
    text = call("show", ids["good"][:5])
    for part in (ids["good"], "e" * 64, "step_time", "mape", "by family", "cpu-2", "torch 2.13.0"):
        assert part in text
    assert "99" not in text  # the baseline's

    content = json.loads(call("show", "champion", "--json"))
    assert content["manifest"]["release_id"] == content["release_id"] == ids["poor"]


def test_show_lays_the_release_folder_down(call, ids, tmp_path):
    call("show", "2", "--download", str(tmp_path / "release"))
    assert load_release(tmp_path / "release").release_id == ids["good"]


def test_promote_by_hand_says_that_it_passes_the_gate_by(call, two, ids):
    two.log_decision(2, {"outcome": "not promoted", "reason": "memory is too slow"}, {})
    text = call("promote", ids["good"])

    assert "regardless of the gate, which last said: not promoted, memory is too slow" in text
    assert f"release {ids['poor']} is withdrawn" in text
    assert two.champion().release_id == ids["good"]
    assert "nothing moved" in call("promote", "champion")


def test_rollback_brings_the_previous_release_back(call, two, ids):
    call("promote", "2")
    assert f"release {ids['poor']} (version 1) is champion again" in call("rollback")
    assert json.loads(call("rollback", "--json"))["champion"]["release_id"] == ids["good"]
    assert "withdrawn by hand" in call("list")


def test_diff_marks_the_better_one_and_names_what_differs(call):
    text = call("diff", "champion", "2")
    assert "data_digest: " + "d" * 64 + " | " + "e" * 64 in text

    content = json.loads(call("diff", "1", "2", "--json"))
    better = {row["metric"]: row["better"] for row in content["metrics"]}
    assert better == {"rows": "", "mape": "b", "within_10pct": "b", "coverage_80%": ""}
    assert list(content["made_of"]) == ["data_digest"]


def test_an_unknown_release_is_an_error_that_names_what_exists(call, ids):
    for command in (("show", "nope"), ("promote", "nope"), ("diff", "1", "nope")):
        with pytest.raises(RegistryError, match=ids["good"]):
            call(*command)
    with pytest.raises(RegistryError, match="no previous release"):
        call("rollback")
