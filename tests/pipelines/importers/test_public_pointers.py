"""The .dvc files under data/public: pinned, fetched by `dvc update`, ignored by the pipeline."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
import yaml

from tests.pipelines.public_files import ROOT

UPSTREAM = ROOT / "data/public/upstream"
POINTERS = sorted(path for path in UPSTREAM.rglob("*.dvc") if path.is_file())
URL = re.compile(
    r"https://(raw\.githubusercontent\.com/[\w.-]+/[\w.-]+/[0-9a-f]{40}/[\w./-]+"
    r"|codeload\.github\.com/[\w.-]+/[\w.-]+/tar\.gz/[0-9a-f]{40})"
)
FORBIDDEN = {"lucid", "gpumemnet"}  # their licences do not let everybody use them


def dvc(*arguments, cwd):
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "dvc", *map(str, arguments)],
        cwd=cwd, env=environment, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def repository(tmp_path):
    """Repository with the pointers of this project and another stage."""
    shutil.copytree(UPSTREAM, tmp_path / "data/public/upstream")
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {a: {cmd: echo a > a, outs: [a]}}")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert dvc("init", cwd=tmp_path).returncode == 0
    return tmp_path


@pytest.mark.parametrize("path", POINTERS, ids=lambda path: str(path.relative_to(UPSTREAM)))
def test_a_pointer_is_frozen_at_a_commit_of_a_freely_licensed_source(path):
    content = yaml.safe_load(path.read_text())
    (dep,), (out,) = content["deps"], content["outs"]

    assert content["frozen"] is True
    assert URL.fullmatch(dep["path"])
    assert f"{out['path']}.dvc" == path.name
    assert path.relative_to(UPSTREAM).parts[0] not in FORBIDDEN
    assert "md5" not in out  # the file was never fetched: `dvc update` writes it


def test_without_internet_dvc_commands_ignore_the_pointers(repository):
    author = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    git = ["git", "-C", repository]
    repro = dvc("repro", cwd=repository)
    assert repro.returncode == 0, repro.stderr
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, *author, "commit", "-q", "-m", "a"], check=True)
    tried = dvc("exp", "run", "--name", "tried", cwd=repository)
    assert tried.returncode == 0, tried.stderr
    assert "http" not in tried.stdout + tried.stderr
    changed = subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True)
    assert changed.stdout == b""
    status = dvc("status", cwd=repository)

    assert status.returncode == 0
    assert "changed checksum" not in status.stdout
    assert "ERROR" not in status.stderr
    again = dvc("repro", cwd=repository)
    assert "up to date" in again.stdout + again.stderr
    assert not list(repository.glob("data/public/upstream/*/*.csv"))


def test_dvc_update_fetches_the_files_of_a_pointer_and_git_ignores_them(repository):
    published = repository.parent / "published"
    published.mkdir()
    (published / "bert.csv").write_text("Mig instance,Batch size\n1,1\n")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=published)
    pointer = repository / "data/public/upstream/parvagpu/bert.csv.dvc"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        local = f"http://127.0.0.1:{server.server_port}/bert.csv"
        pointer.write_text(re.sub(r"https://\S+", local, pointer.read_text()))
        done = dvc("update", pointer, cwd=repository / "data/public/upstream")
        server.shutdown()

    assert done.returncode == 0, done.stderr
    fetched = pointer.with_suffix("")
    assert fetched.read_text() == "Mig instance,Batch size\n1,1\n"
    assert "md5" in yaml.safe_load(pointer.read_text())["outs"][0]
    git = ["git", "-C", repository, "check-ignore", "-q"]
    assert subprocess.run([*git, fetched], check=False).returncode == 0
    assert subprocess.run([*git, pointer], check=False).returncode == 1
