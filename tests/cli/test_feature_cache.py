"""Cached features of traced models: equal to traced ones, and never of an earlier model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
