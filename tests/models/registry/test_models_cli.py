from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from presage.cli.training.models.group import app
from presage.errors import RegistryError
from presage.models.release.release import load_release
from tests.models.conftest import POLICY


@pytest.fixture
def call(two, monkeypatch):
    """Function that runs `presage models ...` and raises the exception of an error."""
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


def test_list_prints_the_newest_first_with_aliases(call, ids):
    text = call("list")
    assert text.index(ids["good"]) < text.index(ids["poor"])
    assert "champion" in text

    rows = json.loads(call("list", "--json"))
    assert [row["release_id"] for row in rows] == [ids["good"], ids["poor"]]
    assert rows[1]["aliases"] == ["champion"]


def test_an_empty_registry_is_reported(call, uri):
    assert "no release yet" in call("list", "--registry", uri)
    assert json.loads(call("list", "--registry", uri, "--json")) == []


def test_show_prints_metrics_devices_and_digest(call, ids):
    text = call("show", ids["good"][:5])
    for part in (ids["good"], "e" * 64, "step_time", "mape", "by family", "cpu-2", "torch 2.13.0"):
        assert part in text
    assert "99" not in text  # the baseline's

    content = json.loads(call("show", "champion", "--json"))
    assert content["manifest"]["release_id"] == content["release_id"] == ids["poor"]


def test_show_downloads_the_release_folder(call, ids, tmp_path):
    call("show", "2", "--download", str(tmp_path / "release"))
    assert load_release(tmp_path / "release").release_id == ids["good"]


def test_a_rejected_release_is_promoted_only_with_force_and_a_reason(call, two, ids):
    two.log_decision(2, {"outcome": "not promoted", "reason": "memory is too slow"}, {})
    for arguments in ((), ("--force",), ("--reason", "urgent"), ("--force", "--reason", " ")):
        with pytest.raises(RegistryError, match=r"memory is too slow\); .*--force --reason TEXT"):
            call("promote", ids["good"], *arguments)
    assert two.champion().release_id == ids["poor"]

    text = call("promote", ids["good"], "--force", "--reason", "a customer waits", "--by", "ada")
    assert "without passing the gate; last gate result: not promoted, memory is too slow" in text
    assert f"release {ids['poor']} is withdrawn" in text
    assert two.champion().release_id == ids["good"]
    assert "nothing changed" in call("promote", "champion")
    last = json.loads(call("history", "--json"))[0]
    assert (last["verdict"], last["by"], last["reason"]) == ("forced", "ada", "a customer waits")


def test_an_accepted_release_is_promoted_manually_without_force(call, two, ids):
    two.log_decision(2, {"outcome": "promoted", "reason": "better"}, {})
    assert "by hand; last gate result: promoted, better" in call("promote", "2")
    assert two.journal()[-1].verdict == "by hand"


def test_rollback_restores_the_previous_release(call, two, ids):
    two.promote(2)
    text = call("rollback", "--reason", "slow")
    assert f"release {ids['poor']} (version 1) is champion again" in text
    assert json.loads(call("rollback", "--json"))["champion"]["release_id"] == ids["good"]
    assert "withdrawn by hand" in call("list")


def test_the_journal_prints_the_newest_first(call, two, uri, ids):
    two.promote(2, reason="better", by="ada")
    text = call("history")
    assert text.index(f"2 {ids['good']}") < text.index(f"1 {ids['poor']}")
    for part in ("gate", "ada", "better"):
        assert part in text
    assert [entry["number"] for entry in json.loads(call("history", "--json"))] == [2, 1]
    assert json.loads(call("history", "--registry", uri, "--json")) == []
    assert "no entry yet" in call("history", "--registry", uri)


def test_delete_keeps_the_champion_and_removes_unreferenced_versions(call, two, ids):
    with pytest.raises(RegistryError, match="alias champion, journal entry 1 refer to it"):
        call("delete", "champion")
    assert f"release {ids['good']} (version 2) and its run are deleted" in call("delete", "2")
    assert [release.version for release in two.versions()] == [1]


def test_gate_evaluates_a_version_or_a_folder_and_changes_nothing(
    call, two, ids, releases, features_dir, tmp_path, monkeypatch
):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"promote": POLICY}))
    monkeypatch.chdir(tmp_path)
    before = two.versions(), two.journal()
    for ref in ("2", str(releases["good"].folder)):
        text = call("gate", ref, "--features", str(features_dir))
        assert "gate, on the held-out jobs" in text
        assert f"release {ids['good']} would be promoted: " in text
    found = json.loads(
        call("gate", str(releases["blind"].folder), "--features", str(features_dir), "--json")
    )
    assert found["outcome"] == "not promoted"
    assert found["champion"] == ids["poor"]
    assert "is already the champion" in call("gate", "champion", "--features", str(features_dir))
    assert (two.versions(), two.journal()) == before


def test_diff_marks_the_better_figure_and_lists_differences(call):
    text = call("diff", "champion", "2")
    assert "data_digest: " + "d" * 64 + " | " + "e" * 64 in text

    content = json.loads(call("diff", "1", "2", "--json"))
    better = {row["metric"]: row["better"] for row in content["metrics"]}
    assert better == {"rows": "", "mape": "b", "within_10pct": "b", "coverage_80%": ""}
    assert list(content["made_of"]) == ["data_digest"]


def test_an_unknown_release_is_an_error_that_lists_releases(call, ids):
    for command in (("show", "nope"), ("promote", "nope"), ("diff", "1", "nope")):
        with pytest.raises(RegistryError, match=ids["good"]):
            call(*command)
    with pytest.raises(RegistryError, match="no previous release"):
        call("rollback")
