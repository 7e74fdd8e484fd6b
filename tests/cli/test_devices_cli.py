"""Kinds of devices and the release asked, as the command line takes them: real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from presage.models.registry.registry import Registry
from presage.serving.authentication.token_file import add_token
from presage.serving.client import job_features
from presage.serving.client.client import PresageClient
from tests.features.examples import features
from tests.serving.conftest import make_release
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import serving

ADDED = """\
mi300x:
  compute_capability: 9.4
  memory_bytes: 206158430208
  cores: 19456
  peak_flops_per_s: {fp32: 1.634e14}
  memory_bandwidth_bytes_per_s: 5.3e12
  names: [AMD Instinct MI300X]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("devices")
    (path / "job.json").write_text(job_features.to_json(features()))
    (path / "more.yaml").write_text(ADDED)
    return path


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("release") / "release")


def presage(*words, cwd, **variables):
    return subprocess.run(
        [sys.executable, "-m", "presage", *map(str, words)], cwd=cwd, text=True,
        capture_output=True, timeout=120, check=False, env={**os.environ, **variables},
    )  # fmt: skip


def asked(*words, cwd, **variables):
    done = presage("predict", "--job", "job.json", "--json", *words, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_error_of_an_unknown_kind_names_its_option_and_the_nearest_kind(folder, release):
    with serving("--release", release.folder, "--no-outcomes") as server:
        of_server = ("predict", "--job", "job.json", "--server", server.target)
        in_process = ("predict", "--job", "job.json", "--release", release.folder)
        for words in (of_server, in_process, ("features", "job.json")):
            done = presage(*words, "--device", "nosuch", cwd=folder)
            assert done.returncode == 1
            assert done.stderr.startswith("error: --device: no device of kind 'nosuch' is in the")
            assert "presage devices" in done.stderr
            assert ".kind" not in done.stderr  # no field of a message
            near = presage(*words, "--device", "h20", cwd=folder).stderr
            assert "did you mean 'h200'" in near
        with PresageClient(server.target) as client, pytest.raises(Exception, match="'h20'; did"):
            client.device("h20")


def test_a_server_predicts_for_a_kind_of_device_in_a_users_file(folder, release):
    kind = ("--device", "AMD Instinct MI300X")
    with serving("--release", release.folder, "--no-outcomes") as server:
        answers = [
            asked(*kind, "--devices", "more.yaml", "--server", server.target, cwd=folder),
            asked(*kind, "--devices", "more.yaml", "--release", release.folder, cwd=folder),
            asked(
                *kind, "--release", release.folder, cwd=folder,
                PRESAGE_DEVICES=str(folder / "more.yaml"),
            ),
        ]  # fmt: skip
    assert {answer["device"] for answer in answers} == {"mi300x"}
    assert answers[0]["jobs"] == answers[1]["jobs"] == answers[2]["jobs"]
    more = ("--devices", folder / "more.yaml", "--release", release.folder, "--no-outcomes")
    with serving(*more) as server, PresageClient(server.target) as client:
        assert client.device("amd-instinct-mi300x").cores == 19456


def test_devices_lists_the_catalogue_and_finds_a_device_by_any_of_its_names(folder):
    listed = json.loads(presage("devices", "--json", cwd=folder).stdout)
    assert {"v100", "h200", "cpu-2"} <= {row["kind"] for row in listed}

    named = presage("devices", "Tesla V100-SXM2-16GB", "V100M16", "--json", cwd=folder)
    assert [row["kind"] for row in json.loads(named.stdout)] == ["v100-16gb"]
    more = presage("devices", "mi300x", "--devices", "more.yaml", cwd=folder, COLUMNS="200")
    assert "AMD Instinct MI300X" in more.stdout
    wrong = presage("devices", "h20", cwd=folder)
    assert wrong.stderr.startswith("error: NAME: no device of kind 'h20'")


def test_predict_uses_the_champion_like_serve_and_not_the_newest_release(folder, tmp_path):
    """Then, before there is a champion, the same release as serve too."""
    champion = make_release(tmp_path / "champion", data_digest="c" * 64)
    newest = make_release(tmp_path / "newest", data_digest="d" * 64)
    checkout = tmp_path / "checkout"
    shutil.copytree(newest.folder, checkout / "data/release")
    shutil.copy(Path(__file__).parents[2] / "dvc.yaml", checkout)
    shutil.copy(folder / "job.json", checkout)
    mine = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    registry = Registry(f"sqlite:///{checkout}/data/registry/mlflow.db")
    registry.register(champion, {})
    registry.register(newest, {})
    registry.promote(1)

    with serving("--no-outcomes", cwd=checkout, **mine) as server:
        assert server.release_id == champion.release_id != newest.release_id
    answer = asked("--device", "cpu-2", cwd=checkout, **mine)
    assert answer["release_id"] == champion.release_id


def test_without_a_champion_predict_and_serve_use_the_same_release(folder, tmp_path):
    newest = make_release(tmp_path / "data/release", data_digest="f" * 64)
    shutil.copy(folder / "job.json", tmp_path)

    with serving("--no-outcomes", cwd=tmp_path) as server:
        answer = asked("--device", "cpu-2", cwd=tmp_path)
        assert answer["release_id"] == server.release_id != newest.release_id


def test_the_command_calls_a_server_with_tokens_and_tls(folder, release, tmp_path):
    authority = make_authority(tmp_path, "ca")
    certificate, key = make_certificate(tmp_path, "server", authority)
    token = tmp_path / "ann.token"
    token.write_text(add_token(tmp_path / "tokens", "ann", ["predict"]))
    shown = ("--ca", authority[0], "--token-file", token)
    with serving(
        "--release", release.folder, "--no-outcomes", "--tokens", tmp_path / "tokens",
        "--tls-cert", certificate, "--tls-key", key,
    ) as server:  # fmt: skip
        found = asked("--server", server.target, *shown, cwd=folder)
        seen = presage("doctor", "--server", server.target, *shown, cwd=folder)
        refused = presage(
            "predict", "--job", "job.json", "--server", server.target, *shown[:2], cwd=folder
        )

    assert found["release_id"] == release.release_id
    assert f"serves release {release.release_id}" in seen.stdout
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")
    assert "token" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_an_invalid_server_address_is_named(folder):
    done = presage("predict", "--job", "job.json", "--server", "127.0.0.1:abc", cwd=folder)

    assert done.returncode == 1
    assert done.stderr.startswith("error: --server '127.0.0.1:abc' is not HOST:PORT; write it like")
