"""``presage inc timeline`` and ``demo``: the user's files around the picture are safe."""

from __future__ import annotations

import pytest

from presage.cli.scheduling.inc import picture_file
from presage.collectives.arbiter.client import ArbiterClient
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.errors import ConfigError
from tests.cli.test_terminal import run


@pytest.fixture
def arbiter(monkeypatch):
    """Let a client get an empty time line without an arbiter."""
    monkeypatch.setattr(ArbiterClient, "timeline", lambda *_: pb.TimelineResponse())


@pytest.mark.parametrize("command", ["timeline", "demo"])
def test_an_existing_folder_is_rejected_and_keeps_its_name(
    tmp_path, monkeypatch, capsys, arbiter, command
):
    folder = tmp_path / "results.html"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")

    assert run(monkeypatch, "inc", command, "--out", str(folder)) == 1

    assert "is a folder; give the name of a file" in capsys.readouterr().err
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["results.html"]


@pytest.mark.parametrize("command", ["timeline", "demo"])
def test_a_missing_folder_is_named_without_a_partial_file(
    tmp_path, monkeypatch, capsys, arbiter, command
):
    assert run(monkeypatch, "inc", command, "--out", str(tmp_path / "nowhere" / "a.svg")) == 1

    said = capsys.readouterr().err
    assert "there is no folder" in said
    assert ".partial" not in said and len(said.splitlines()) == 1


def test_a_folder_that_appears_during_the_request_keeps_its_name(tmp_path):
    out = tmp_path / "a.svg"
    picture_file.check_picture(out)
    out.mkdir()
    with pytest.raises(ConfigError, match=r"a\.svg: cannot be written \(Is a directory\)"):
        picture_file.write_picture(out, "<svg/>")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_an_existing_file_is_replaced(tmp_path, monkeypatch, arbiter):
    out = tmp_path / "a.svg"
    out.write_text("old")
    assert run(monkeypatch, "inc", "timeline", "--out", str(out)) == 0
    assert "<svg" in out.read_text()


@pytest.mark.parametrize("last", ["nan", "-3s", "inf", "soon"])
def test_an_invalid_time_is_a_usage_error(monkeypatch, last):
    assert run(monkeypatch, "inc", "timeline", "--last", last) == 2


def test_an_invalid_ca_certificate_is_named(tmp_path, monkeypatch, capsys):
    authority = tmp_path / "ca.pem"
    authority.write_text("no certificate")

    assert run(monkeypatch, "inc", "status", "--ca", str(authority)) == 1

    said = capsys.readouterr().err
    assert "ca.pem: contains no certificate" in said
    assert len(said.splitlines()) == 1


def test_a_client_certificate_needs_its_key(tmp_path, monkeypatch, capsys):
    certificate = tmp_path / "cert.pem"
    certificate.write_text("")

    assert run(monkeypatch, "inc", "status", "--cert", str(certificate)) == 1

    assert "give both --cert and --key, or neither" in capsys.readouterr().err
