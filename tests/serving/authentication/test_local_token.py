"""Local token: only its own user can read it, whatever lies in its path."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from presage.errors import UnauthenticatedError
from presage.serving.authentication import local_token as tokens
from presage.serving.authentication.local_token import (
    LocalToken,
    account,
    local_token_finder,
    local_token_path,
)
from tests.serving.support.processes import free_port


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tokens, "CHECK_S", 0.0)


def metadata(token):
    return [("authorization", f"Bearer {token}")]


@pytest.mark.parametrize("target", ["127.0.0.1:5001", "localhost:5001", "[::1]:5001"])
def test_a_client_of_the_same_user_sends_the_token(target):
    server = LocalToken(5001, ["predict", "admin"])
    server.write()

    caller = server().authenticate(metadata(local_token_finder(target)()))
    assert (caller.name, caller.account) == (account(), account())
    assert caller.roles == {"predict", "admin"}


@pytest.mark.parametrize("target", ["10.0.0.1:5001", "example:5001", "127.0.0.1:5002", "unix:/x"])
def test_the_token_is_not_sent_to_another_server(target):
    LocalToken(5001, ["predict"]).write()

    assert local_token_finder(target)() == ""


LISTENING = """\
import os, socket, sys
os.setuid(65534)
listening = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to listen as another user")
@pytest.mark.parametrize(
    ("listens", "target", "is_sent"),
    [
        ("127.0.0.1", "127.0.0.1", False),  # after the server was killed
        ("127.0.0.1", "localhost", False),
        ("127.0.0.2", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.1", False),
        ("127.0.0.2", "127.0.0.1", True),  # the server is another one
        ("127.0.0.2", "localhost", True),
    ],
)
def test_the_token_is_not_sent_to_a_server_of_another_user(listens, target, is_sent):
    port = free_port()
    LocalToken(port, ["predict"]).write()
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, listens, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert (local_token_finder(f"{target}:{port}")() != "") is is_sent


@pytest.mark.parametrize(
    ("name", "place", "uid", "is_sent"),
    [
        ("[::1]", f"{'0' * 24}01000000", 1, False),
        ("localhost", f"{'0' * 24}01000000", 1, False),
        ("localhost", "0" * 32, 1, False),
        ("127.0.0.1", "0000000000000000FFFF00000100007F", 1, False),
        ("localhost", f"{'0' * 24}01000000", 0, True),  # root can do anything
        ("127.0.0.1", f"{'0' * 24}01000000", 1, True),
    ],
)
def test_the_user_of_a_listening_socket_is_read_from_the_kernels_tables(
    name, place, uid, is_sent, tmp_path, monkeypatch
):
    LocalToken(5001, ["predict"]).write()
    row = (
        f"   0: {place}:1389 {'0' * 32}:0000 0A 00000000:00000000 00:00000000 00000000 {uid} 0 1\n"
    )
    (tmp_path / "tcp6").write_text(f"  sl  local_address\n{row}")
    monkeypatch.setattr(tokens, "SOCKET_TABLES", (tmp_path / "none", tmp_path / "tcp6"))

    assert (local_token_finder(f"{name}:5001")() != "") is is_sent


def test_only_its_user_can_read_the_token_under_any_umask():
    before = os.umask(0)
    try:
        LocalToken(5001, ["predict"]).write()
    finally:
        os.umask(before)

    path = local_token_path(5001)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_restarted_server_has_a_new_token_that_clients_find():
    find = local_token_finder("127.0.0.1:5001")
    before, after = LocalToken(5001, ["predict"]), LocalToken(5001, ["predict"])
    before.write()
    old = find()
    after.write()

    assert after().authenticate(metadata(find()))
    with pytest.raises(UnauthenticatedError):
        after().authenticate(metadata(old))
    before.remove()  # it ended after the other server had replaced the file
    assert find() != ""
    after.remove()
    assert find() == ""


@pytest.mark.parametrize("what", ["fifo", "link", "folder", "readable by all", "large", "device"])
def test_other_content_in_its_path_is_not_a_token(what, tmp_path):
    path = local_token_path(5001)
    path.parent.mkdir(parents=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "link":
        (tmp_path / "other").write_text("x")
        path.symlink_to(tmp_path / "other")
    elif what == "folder":
        path.mkdir()
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("x" * (10_000 if what == "large" else 10))
        path.chmod(0o644 if what == "readable by all" else 0o600)

    assert local_token_finder("127.0.0.1:5001")() == ""


def test_a_server_runs_without_a_token_where_no_file_can_be_written(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")

    LocalToken(5001, ["predict"]).write()

    assert "no local token" in caplog.text
