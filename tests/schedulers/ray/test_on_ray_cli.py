"""Errors of `presage cluster on-ray`, and the files that it writes."""

from __future__ import annotations

import ssl
import sys

import pytest

from presage.schedulers.ray.cluster_files import ClusterFiles, self_signed
from presage.schedulers.ray.node_actor import RayNode
from presage.serving.authentication.token_file import read_tokens
from tests.support.in_process import presage


def on_ray(tmp_path, *options):
    return presage("cluster", "on-ray", "--state", tmp_path / "state", *options)


def test_without_ray_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = on_ray(tmp_path)

    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "error: the package 'ray' is not installed; pip install 'presage[ray]'"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--address", "127.0.0.1:1"], "no Ray cluster at '127.0.0.1:1'"),
        (["--risk", "1.5"], "risk=1.5"),
        (["--policy", "nix"], "nix"),
        (["--predictor", "nowhere"], "--predictor 'nowhere' is unknown"),
    ],
)
def test_invalid_options_are_errors_of_one_line(tmp_path, options, message):
    ended = on_ray(tmp_path, *options)

    assert ended.returncode == 1
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_state_folder_of_another_cluster_is_rejected(tmp_path):
    (tmp_path / "state").write_text("a file")
    ended = on_ray(tmp_path)

    assert ended.returncode == 1
    assert "cannot be written" in ended.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "fd00::1", "head.cluster"])
def test_the_certificate_names_the_host_and_fits_its_key(tmp_path, host):
    certificate, key = self_signed(host)
    (tmp_path / "cert.pem").write_text(certificate)
    (tmp_path / "key.pem").write_text(key)

    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        tmp_path / "cert.pem", tmp_path / "key.pem"
    )
    client = ssl.create_default_context(cadata=certificate)
    assert client.cert_store_stats()["x509_ca"] == 1


def test_files_are_private_and_each_node_has_one_token(tmp_path):
    files = ClusterFiles(tmp_path, "10.0.0.1", 50061)
    token = files.node_token(RayNode("n-1", {"NVIDIA H20": 2, "h100": 1}))

    assert files.node_token(RayNode("n-1", {"h100": 1})) == token
    tokens = read_tokens(files.tokens)
    assert len(tokens) == 2
    caller = tokens.authenticate([("authorization", f"Bearer {token}")])
    assert (caller.name, caller.node) == ("n-1", "n-1")
    assert caller.devices == (("NVIDIA H20", 2), ("h100", 1))
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    text = files.environment.read_text()
    assert "export PRESAGE_CLUSTER=10.0.0.1:50061\n" in text


def test_a_restart_replaces_the_tokens(tmp_path):
    before = ClusterFiles(tmp_path, "10.0.0.1", 50061)
    old = before.node_token(RayNode("n-1", {"cpu-1": 1}))
    after = ClusterFiles(tmp_path, "10.0.0.1", 50061)

    assert after.node_token(RayNode("n-1", {"cpu-1": 1})) != old
    assert len(read_tokens(after.tokens)) == 2
