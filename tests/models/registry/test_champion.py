"""Finding and fetching the champion: from a database, an MLflow server, or neither."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from presage.errors import RegistryError, ReleaseError
from presage.features.quantities.quantity_registry import required_quantities
from presage.models.registry import champion as module
from presage.models.registry import mlflow_store
from presage.models.registry.champion import (
    Champion,
    fetch_champion,
    find_champion,
    find_champion_id,
    is_intact,
)
from presage.models.registry.registry import Registry
from presage.models.release.release import MANIFEST, load_release
from tests.models.mlflow_server import served
from tests.serving.support.processes import free_port

ASK = "/api/2.0/mlflow/registered-models/alias?name=presage&alias=champion"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "releases"


def named(uri: str) -> Champion:
    champion = find_champion(uri)
    assert champion is not None
    return champion


def artifacts(registry: Registry) -> Path:
    """Return the folder of the champion's files next to a database."""
    folder = Path(registry.uri.removeprefix("sqlite:///")).parent
    return folder / "artifacts" / named(registry.uri).run_id / "artifacts" / "release"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cached(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock")


def test_a_cache_keeps_the_most_recently_used_releases(two, cache, monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_RELEASES", 2)
    champion = named(two.uri)
    folder = fetch_champion(two.uri, champion, cache)
    for age_s, name in enumerate(("aa", "bb", "cc"), start=1):
        shutil.copytree(folder, cache / name)
        os.utime(cache / name, (time.time() - age_s,) * 2)
    shutil.rmtree(folder)
    (cache / "notes").mkdir()  # no release

    fetch_champion(two.uri, champion, cache)

    assert cached(cache) == sorted([champion.release_id, "aa", "notes"])


# Found in a database ---------------------------------------------------------------------------


def test_the_champion_is_read_from_a_database(two, releases):
    assert named(two.uri).release_id == releases["poor"].release_id
    two.promote(2)

    assert named(two.uri) == Champion(releases["good"].release_id, two.resolve(2).run_id)
    assert find_champion_id(two.uri) == releases["good"].release_id


def test_a_database_without_a_champion(two, uri):
    assert find_champion(uri) is None  # nor any release
    assert find_champion_id(uri) is None

    with closing(sqlite3.connect(two.uri.removeprefix("sqlite:///"))) as database:
        database.execute("DELETE FROM registered_model_aliases")
        database.commit()
    assert find_champion(two.uri) is None


def test_a_deleted_champion_is_none(two):
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=two.uri).delete_model_version("presage", 1)

    assert find_champion(two.uri) is None


def test_a_champion_not_registered_by_presage_is_none(two):
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=two.uri).delete_model_version_tag("presage", "1", "release_id")

    assert find_champion(two.uri) is None


def test_a_missing_database_is_not_created(tmp_path):
    with pytest.raises(RegistryError, match=r"none\.db: the champion cannot be read"):
        find_champion(f"sqlite:///{tmp_path}/none.db")
    assert find_champion_id(f"sqlite:///{tmp_path}/none.db") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"notes\n" * 1000])
def test_a_file_that_is_not_a_registry(tmp_path, content):
    (tmp_path / "notes.txt").write_bytes(content)

    with pytest.raises(RegistryError, match=r"notes\.txt: .* cannot be read .*--registry"):
        find_champion(f"sqlite:///{tmp_path}/notes.txt")


def test_a_database_in_a_folder_with_an_odd_name(two, releases, tmp_path):
    odd = tmp_path / "50% of #1? {a b}"
    shutil.copytree(Path(two.uri.removeprefix("sqlite:///")).parent, odd)

    assert find_champion_id(f"sqlite:///{odd}/mlflow.db") == releases["poor"].release_id


def test_a_release_id_that_could_leave_the_cache_is_rejected(two):
    with closing(sqlite3.connect(two.uri.removeprefix("sqlite:///"))) as database:
        database.execute("UPDATE model_version_tags SET value = '../../x' WHERE key = 'release_id'")
        database.commit()

    with pytest.raises(RegistryError, match=r"'\.\./\.\./x' is not a release id"):
        find_champion(two.uri)


# Found on a server of MLflow -------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory, empty_database) -> Iterator[Registry]:
    """Registry of a real server, without a release."""
    folder = tmp_path_factory.mktemp("mlflow-server")
    shutil.copy(empty_database, folder / "mlflow.db")
    with served(folder) as uri:
        yield Registry(uri)


def test_the_champion_is_fetched_from_an_mlflow_server(mlflow_server, releases, cache, monkeypatch):
    uri = mlflow_server.uri
    assert find_champion(uri) is None  # there is no model of that name

    for name in ("poor", "good"):
        mlflow_server.register(releases[name], {})
    assert find_champion(uri) is None  # there is no such alias
    assert find_champion_id(f"{uri}/") is None

    mlflow_server.promote(1)
    champion = named(uri)
    assert champion.release_id == releases["poor"].release_id
    assert champion.run_id == mlflow_server.resolve(1).run_id
    assert find_champion_id(f"{uri}/") == champion.release_id

    folder = fetch_champion(uri, champion, cache)
    assert folder == cache / champion.release_id
    assert contents(folder) == contents(releases["poor"].folder)

    mlflow_server.promote(2)
    folder = fetch_champion(f"{uri}/", named(f"{uri}/"), cache)
    assert contents(folder) == contents(releases["good"].folder)
    assert cached(cache) == sorted(releases[name].release_id for name in ("poor", "good"))

    gone = Champion("0123456789ab", champion.run_id[:-1] + "_")
    with pytest.raises(RegistryError, match=r"the files of release 0123456789ab cannot be fetched"):
        fetch_champion(uri, gone, cache)
    with pytest.raises(ReleaseError, match=rf"is release 0123456789ab, .* {champion.release_id};"):
        fetch_champion(uri, Champion("0123456789ab", champion.run_id), cache)
    assert len(cached(cache)) == 2


# Other servers ---------------------------------------------------------------------------------


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Run an HTTP server with this reply to every GET."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                answer(self)
            except OSError:
                self.close_connection = True  # the client has disconnected

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def answering(content: bytes, status: int = 200, length: int | None = None):
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(content) if length is None else length))
        request.end_headers()
        request.wfile.write(content)

    return answer


def version(**changes: object) -> bytes:
    tags = [{"key": "data_digest", "value": "d"}, {"key": "release_id", "value": "abc"}]
    content = {"name": "presage", "version": "3", "run_id": "r", "tags": tags} | changes
    return json.dumps({"model_version": content}).encode()


def raw(content: bytes):
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(content)
        request.close_connection = True

    return answer


def test_requests_to_a_server():
    paths = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        paths.append(request.path)
        answering(version())(request)

    with serving(answer) as uri:
        assert find_champion(f"{uri}/") == Champion("abc", "r")
        assert find_champion(f"{uri}/below/") == Champion("abc", "r")
    assert paths == [ASK, f"/below{ASK}"]


@pytest.mark.parametrize(
    "answer",
    [
        *map(answering, [b"", b"<html>no registry</html>", b"[]", b"null", b'"champion"', b"{}",
                         b'{"model_version": null}', b'{"model_version": {}}', b"\xff\xfe{"]),
        answering(version(tags=5)),
        answering(version(tags=["release_id"])),
        answering(version(tags=[{"key": "release_id", "value": "../../etc"}])),
        answering(version(tags=[{"key": "release_id", "value": ""}])),
        answering(version(name="thesis", tags=[])),
        answering(version(), length=10_000),  # cut off
        answering(version(), status=500),
        answering(b"not found", status=404),
        answering(b'["RESOURCE_DOES_NOT_EXIST"]', status=404),
        answering(b'{"error_code": "INTERNAL_ERROR"}', status=400),
        answering(b'{"error_code": "RESOURCE_DOES_NOT_EXIST"}', status=503),
        answering(b"", status=401),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"),
        raw(b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n"),
        raw(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"),
        raw(b""),
    ],
)  # fmt: skip
def test_a_malformed_reply_is_an_error(answer):
    with serving(answer) as uri:
        with pytest.raises(RegistryError) as caught:
            find_champion(uri)
        assert find_champion_id(uri) is None

    message = str(caught.value)
    assert message.startswith(f"{uri}: the champion cannot be read (")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("status", "code"), [(404, "RESOURCE_DOES_NOT_EXIST"), (400, "INVALID_PARAMETER_VALUE")]
)
def test_a_missing_model_or_alias_is_none(status, code):
    content = json.dumps({"error_code": code, "message": "said otherwise in every version"})
    with serving(answering(content.encode(), status=status)) as uri:
        assert find_champion(uri) is None


@pytest.mark.parametrize("changes", [{"tags": []}, {"tags": [{"key": "by", "value": "hand"}]}])
def test_a_servers_champion_not_registered_by_presage_is_none(changes):
    with serving(answering(version(**changes))) as uri:
        assert find_champion(uri) is None


def test_a_refused_connection_fails_fast():
    begin_s = time.monotonic()

    with pytest.raises(RegistryError, match=r"Connection refused.*PRESAGE_REGISTRY"):
        find_champion(f"http://127.0.0.1:{free_port()}")
    assert time.monotonic() - begin_s < 2


def test_a_hanging_server_times_out(monkeypatch):
    monkeypatch.setattr(mlflow_store, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, says nothing
        begin_s = time.monotonic()
        with pytest.raises(RegistryError, match="timed out"):
            find_champion(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - begin_s < 2


def test_an_endless_reply_times_out(monkeypatch):
    monkeypatch.setattr(mlflow_store, "MAX_DOWNLOAD_S", 0.3)

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(b" ")
            time.sleep(0.02)

    with serving(answer) as uri:
        begin_s = time.monotonic()
        with pytest.raises(RegistryError, match=r"the reply took more than 0\.3 s"):
            find_champion(uri)
    assert time.monotonic() - begin_s < 2


def test_a_reply_that_is_too_large_is_rejected(monkeypatch):
    monkeypatch.setattr(mlflow_store, "MAX_BYTES", 1000)

    with (
        serving(answering(b" " * 1001)) as uri,
        pytest.raises(RegistryError, match="more than 1000 bytes"),
    ):
        find_champion(uri)


BASIC = f"Basic {base64.b64encode(b'ann:secret').decode()}"


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({}, None),
        ({"TOKEN": "t0ken"}, "Bearer t0ken"),
        ({"USERNAME": "ann", "PASSWORD": "secret"}, BASIC),
        ({"USERNAME": "ann", "PASSWORD": "secret", "TOKEN": "t0ken"}, BASIC),
        ({"USERNAME": "ann", "TOKEN": "t0ken"}, "Bearer t0ken"),
    ],
)
def test_credentials_come_from_mlflows_variables(monkeypatch, variables, sent):
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    headers = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        headers.append(request.headers["Authorization"])
        answering(version())(request)

    with serving(answer) as uri:
        find_champion(uri)
    assert headers == [sent]


def test_redirects_are_followed_without_credentials(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    headers = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        headers.append(request.headers["Authorization"])
        answering(version())(request)

    with serving(answer) as elsewhere:
        moved = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}{ASK}\r\nContent-Length: 0\r\n\r\n"
        with serving(raw(moved.encode())) as uri:
            assert find_champion_id(uri) == "abc"
    assert headers == [None]


# Laid down -------------------------------------------------------------------------------------


def test_the_champion_is_fetched_once(two, releases, cache):
    champion = named(two.uri)

    folder = fetch_champion(two.uri, champion, cache)
    shutil.rmtree(artifacts(two))

    assert fetch_champion(two.uri, champion, cache) == folder == cache / champion.release_id
    assert contents(folder) == contents(releases["poor"].folder)
    assert cached(cache) == [champion.release_id]


def test_files_of_a_moved_registry_are_fetched_from_its_new_place(two, releases, cache, tmp_path):
    moved = Path(two.uri.removeprefix("sqlite:///")).parent.rename(tmp_path / "elsewhere")
    uri = f"sqlite:///{moved}/mlflow.db"

    assert contents(fetch_champion(uri, named(uri), cache)) == contents(releases["poor"].folder)


@pytest.mark.parametrize("damaged", ["memory.onnx", MANIFEST])
@pytest.mark.parametrize("how", ["changed", "gone", "a folder"])
def test_a_corrupt_folder_in_the_cache_is_fetched_again(two, releases, cache, damaged, how):
    champion = named(two.uri)
    path = fetch_champion(two.uri, champion, cache) / damaged
    if how == "changed":
        path.write_bytes(b"{}")
    else:
        path.unlink()
    if how == "a folder":
        path.mkdir()

    folder = fetch_champion(two.uri, champion, cache)

    assert contents(folder) == contents(releases["poor"].folder)
    assert cached(cache) == [champion.release_id]


def test_a_folder_with_another_name_is_not_intact(releases, tmp_path):
    folder = shutil.copytree(releases["poor"].folder, tmp_path / "named-by-hand")

    assert not is_intact(folder)
    assert is_intact(folder.rename(tmp_path / releases["poor"].release_id))


@pytest.mark.parametrize("damaged", [f"{name}.onnx" for name in required_quantities()] + [MANIFEST])
def test_corrupt_files_in_the_registry_are_rejected(two, cache, damaged):
    with (artifacts(two) / damaged).open("r+b") as file:
        file.seek(200)
        file.write(b"\0")
    champion = named(two.uri)

    with pytest.raises(ReleaseError, match=f"release {champion.release_id}/{damaged}: ") as caught:
        fetch_champion(two.uri, champion, cache)
    assert str(caught.value).startswith(two.uri)
    assert str(cache) not in str(caught.value)  # it is not there any more
    assert cached(cache) == []


def test_files_of_another_release_are_rejected(two, releases, cache):
    shutil.rmtree(artifacts(two))
    shutil.copytree(releases["good"].folder, artifacts(two))

    with pytest.raises(ReleaseError, match=rf"those of {releases['good'].release_id}; register it"):
        fetch_champion(two.uri, named(two.uri), cache)
    assert cached(cache) == []


@pytest.mark.parametrize("missing", ["memory.onnx", MANIFEST, ""])
def test_missing_files_in_the_registry_are_named(two, cache, missing):
    if missing:
        (artifacts(two) / missing).unlink()
    else:
        shutil.rmtree(artifacts(two))

    with pytest.raises(RegistryError, match=r"be fetched.*No such file.*presage models show"):
        fetch_champion(two.uri, named(two.uri), cache)
    assert cached(cache) == []


def test_a_truncated_download_is_not_reported_as_a_corrupt_release(cache):
    with (
        serving(answering(b"{", length=100)) as uri,
        pytest.raises(RegistryError, match=r"cannot be fetched.*IncompleteRead"),
    ):
        fetch_champion(uri, Champion("abc", "r"), cache)
    assert cached(cache) == []


def test_an_html_page_in_place_of_a_file_is_rejected(cache):
    with (
        serving(answering(b"<html>please log in</html>")) as uri,
        pytest.raises(ReleaseError, match=rf"^{uri}: release abc/{MANIFEST}: not JSON"),
    ):
        fetch_champion(uri, Champion("abc", "r"), cache)
    assert cached(cache) == []


def test_an_unwritable_cache_is_named(two, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(RegistryError, match=r"file/x: .*cannot be cached.*set XDG_CACHE_HOME"):
        fetch_champion(two.uri, named(two.uri), tmp_path / "file" / "x")


# Each begins at the same instant, and then looks whether what it was given is and stays whole.
AT_ONCE = """
import sys, time
from pathlib import Path
from presage.models.registry.champion import fetch_champion, find_champion, is_intact

uri, cache, begin_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
champion = find_champion(uri)
while time.time() < begin_s:
    pass
folder = fetch_champion(uri, champion, cache)
whole = [is_intact(folder) for _ in range(20)]
assert all(whole), whole
assert not {"mlflow", "torch", "pandas"} & set(sys.modules), "in the serving process"
print(folder)
"""


@pytest.mark.parametrize("before", ["nothing", "a damaged folder"])
def test_concurrent_fetches_all_get_an_intact_release(two, releases, cache, before):
    if before == "a damaged folder":
        (fetch_champion(two.uri, named(two.uri), cache) / "memory.onnx").write_bytes(b"{}")
    begin_s = time.time() + 1
    command = [sys.executable, "-c", AT_ONCE, two.uri, cache, str(begin_s)]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]

    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        assert out.strip() == str(cache / releases["poor"].release_id)
    assert cached(cache) == [releases["poor"].release_id]
    assert load_release(cache / releases["poor"].release_id)
