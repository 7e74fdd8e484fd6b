"""`presage serve --registry`: the champion's folder, in the cache or fetched by another process."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from presage.cli import _download_champion
from presage.features.errors import RegistryError
from presage.models.release import MANIFEST, load_release
from tests.serving.conftest import make_release

SCHEMA = """
CREATE TABLE registered_model_aliases (name, alias, version);
CREATE TABLE model_version_tags (name, version, key, value);
INSERT INTO registered_model_aliases VALUES ('presage', 'champion', 1);
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "presage" / "releases"


@pytest.fixture
def champion(tmp_path):
    return make_release(tmp_path / "champion")


@pytest.fixture
def registry(tmp_path, champion):
    """A registry of MLflow's, as far as the short way to the champion looks into it."""
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        row = ("presage", 1, "release_id", champion.release_id)
        database.execute("INSERT INTO model_version_tags VALUES (?, ?, ?, ?)", row)
        database.commit()
    return f"sqlite:///{path}"


@pytest.fixture
def downloads(champion, monkeypatch):
    """Stands for `presage models show champion --download`: what it was asked, release by release.

    The real one is MLflow's, and is asked in the last test.
    """
    asked = []

    def run(command, **_):
        folder = command[command.index("--download") + 1]
        asked.append(command)
        make_release(champion.folder.parent / "copy").folder.rename(folder)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_the_champion_is_fetched_once(registry, champion, cache, downloads):
    folders = [_download_champion(registry) for _ in range(2)]

    assert folders == [cache / champion.release_id] * 2
    assert load_release(folders[0]).release_id == champion.release_id
    assert len(downloads) == 1
    assert [path.name for path in cache.iterdir()] == [champion.release_id]


@pytest.mark.parametrize("damaged", ["memory.onnx", MANIFEST])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_damaged_folder_in_the_cache_is_fetched_again(
    registry, champion, cache, downloads, damaged, how
):
    folder = _download_champion(registry)
    if how == "gone":
        (folder / damaged).unlink()
    else:
        (folder / damaged).write_bytes(b"{}")

    assert _download_champion(registry) == folder
    assert load_release(folder).release_id == champion.release_id
    assert len(downloads) == 2


def test_a_champion_that_cannot_be_peeked_at_is_named_by_what_was_fetched(
    champion, cache, downloads
):
    assert _download_champion("http://127.0.0.1:9") == cache / champion.release_id


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("a warning\nerror: sqlite:///x: no champion\n", "^sqlite:///x: no champion$"),
        ("Traceback\nMemoryError\n", r"cannot be downloaded \(MemoryError\)"),
        ("", r"cannot be downloaded \(exit code 3\)"),
    ],
)
def test_what_the_fetching_process_says_is_passed_on(registry, cache, monkeypatch, stderr, said):
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3, "", stderr)
    )

    with pytest.raises(RegistryError, match=said):
        _download_champion(registry)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(registry, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(RegistryError, match="set XDG_CACHE_HOME"):
        _download_champion(registry)


SERVE = """
import sys
from presage.cli import _download_champion
print(_download_champion(sys.argv[1]))
assert not {"mlflow", "torch", "pandas"} & set(sys.modules), "in the serving process"
"""


def test_the_serving_process_never_imports_mlflow(champion, cache, tmp_path):
    from presage.models.registry import Registry

    uri = f"sqlite:///{tmp_path}/registry/mlflow.db"
    real = Registry(uri)
    real.register(champion, {})
    real.promote(1)

    for _ in range(2):  # fetched, then found
        done = subprocess.run(
            [sys.executable, "-c", SERVE, uri], text=True, capture_output=True, check=False
        )
        assert done.stdout.strip() == str(cache / champion.release_id), done.stderr
        assert done.returncode == 0, done.stderr
