"""Cached features of traced models: equal to traced ones, and never of an earlier model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from presage.cli.options import feature_cache
from tests.features.examples import features as example

FEATURES = example(iterations=7)

MODEL = """
import os
from pathlib import Path

import torch
from sizes import OUTPUTS


def network(batch_size=8):
    Path("traced").write_text("yes")
    width = int(Path("width.txt").read_text()) * int(os.environ.get("TIMES", 1))
    layers = torch.nn.Linear(64, width), torch.nn.Linear(width, OUTPUTS)
    return torch.nn.Sequential(*layers), torch.randn(batch_size, 64)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "sizes.py").write_text("OUTPUTS = 10\n")
    (tmp_path / "width.txt").write_text("100")
    return tmp_path


def features(folder, *options, **variables):
    """Return the features that the command prints, and whether it called the user's function."""
    (folder / "traced").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "presage", "features", "mine:network", "--json", *options],
        cwd=folder,
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout), (folder / "traced").exists()


def parameters(width, outputs=10):
    return str((64 + 1) * width + (width + 1) * outputs)


def test_a_model_is_traced_again_only_if_something_that_it_read_changed(folder):
    first, was_traced = features(folder)
    assert was_traced
    assert first["parameters"] == parameters(100)

    assert features(folder) == (first, False)
    assert features(folder, UNRELATED="1") == (first, False)
    longer, was_traced = features(folder, "--iterations", "7")
    assert not was_traced
    assert longer == first | {"iterations": "7"}

    assert features(folder, TIMES="2")[0]["parameters"] == parameters(200)
    (folder / "width.txt").write_text("50")
    assert features(folder)[0]["parameters"] == parameters(50)
    (folder / "sizes.py").write_text("OUTPUTS = 3\n")
    changed, was_traced = features(folder)
    assert was_traced
    assert changed["parameters"] == parameters(50, outputs=3)


def test_a_damaged_entry_is_replaced_and_secrets_are_not_stored(folder):
    first, _ = features(folder, TIMES="1", TOKEN="hush-hush")
    (entry,) = (folder / "cache/presage/features").iterdir()
    assert "hush-hush" not in entry.read_text()

    entry.write_text('{"reads": {"files": {}, "variables": {}}, "job": {"op_stats": 1}}')
    assert features(folder, TIMES="1") == (first, True)
    assert features(folder, TIMES="1") == (first, False)


def test_the_cache_can_be_off_or_impossible_to_write(folder):
    first, _ = features(folder, PRESAGE_FEATURE_CACHE="off")
    assert not (folder / "cache").exists()

    (folder / "cache").write_text("a file, where a folder should be")
    assert features(folder) == (first, True)
    assert features(folder) == (first, True)


def test_a_failure_is_not_cached(folder):
    Path(folder / "width.txt").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        features(folder)
    (folder / "width.txt").write_text("100")

    assert features(folder)[0]["parameters"] == parameters(100)


@pytest.fixture
def lookup(tmp_path, monkeypatch):
    """Look up one model; return whether it was traced. Tracing only opens a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(feature_cache.CACHE, raising=False)
    (tmp_path / "width.txt").write_text("100")

    def was_traced(trace=(tmp_path / "width.txt").read_text, **settings):
        traced = []

        def traced_features():
            traced.append(trace())
            return FEATURES

        found = feature_cache.cached_features(settings, 7, traced_features)
        assert found == FEATURES
        return bool(traced)

    return was_traced


def test_each_setting_has_an_entry_of_its_own(lookup):
    settings: list[dict[str, Any]] = [
        {"batch_size": 8}, {"batch_size": 9}, {"optimizer": "adam"}, {"precision": "bf16"}
    ]  # fmt: skip

    assert all(lookup(**each) for each in settings)
    assert not any(lookup(**each) for each in settings)


def test_an_entry_is_of_its_owner_only(lookup, monkeypatch):
    assert [lookup(), lookup()] == [True, False]
    (entry,) = feature_cache.default_folder().iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    assert entry.parent.stat().st_mode & 0o777 == 0o700

    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert lookup()


def test_an_entry_has_a_largest_size_and_there_is_a_largest_number(lookup, monkeypatch):
    monkeypatch.setattr(feature_cache, "MOST_ENTRIES", 2)
    assert all(lookup(number=number) for number in range(4))
    assert len(list(feature_cache.default_folder().iterdir())) == 2

    monkeypatch.setattr(feature_cache, "MOST_BYTES", 10)
    assert [lookup(number=5), lookup(number=5)] == [True, True]


def test_a_result_of_a_program_is_not_cached(lookup):
    def run():
        subprocess.run(["true"], check=True)

    assert [lookup(run), lookup(run)] == [True, True]


def test_a_missing_home_or_working_folder_only_turns_the_cache_off(lookup, monkeypatch):
    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert [lookup(), lookup()] == [True, True]
    assert not Path("relative").exists()

    gone = Path("gone").absolute()
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert lookup()
