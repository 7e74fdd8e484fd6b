"""Data folder of the commands: in a checkout, else in the user's state folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.errors import ConfigError
from presage.models.registry.uri import configured_uri, database_path
from presage.system.files.data_folder import data_folder, default_log

ROOT = Path(__file__).parents[2]


def test_in_a_checkout_the_data_folder_is_that_of_the_stages(monkeypatch):
    monkeypatch.chdir(ROOT)

    assert data_folder() == Path("data")
    assert default_log() == Path("data/outcomes/log.db")


def test_a_folder_with_another_projects_pipeline_is_not_a_checkout(tmp_path, monkeypatch):
    (tmp_path / "dvc.yaml").write_text("stages: {train: {cmd: python train.py}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    assert data_folder() == tmp_path / "state/presage"


@pytest.mark.parametrize("value", [None, "", "relative/folder"])
def test_a_relative_state_folder_is_ignored_by_the_specification(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    if value is None:
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_STATE_HOME", value)

    assert data_folder() == Path("/home/somebody/.local/state/presage")


def test_the_error_without_a_home_folder_names_the_variable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def none() -> Path:  # what Path.home() does for a user that is in no password file
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)

    with pytest.raises(ConfigError, match="set XDG_STATE_HOME"):
        data_folder()


def test_outside_a_checkout_the_default_registry_is_in_the_state_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PRESAGE_REGISTRY", raising=False)

    assert database_path(configured_uri()) == tmp_path / "state/presage/registry/mlflow.db"
    assert not (tmp_path / "state").exists()
