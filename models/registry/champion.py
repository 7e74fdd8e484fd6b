"""The champion, found and laid down without MLflow, whose import takes seconds and 175 MB.

It asks the registry itself, over REST or in the database, never a copy that could be stale.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.parse import quote

from presage.errors import ForeignReleaseError, RegistryError, ReleaseError
from presage.models.registry.uri import (
    CHAMPION,
    ENVIRONMENT_VARIABLE,
    FOLDER,
    MODEL,
    REGISTER_AGAIN,
    RELEASE_ID,
    artifacts_folder,
    database_path,
)
from presage.models.release.release import MANIFEST, SIGNATURE, load_release, release_files
from presage.system.files.atomic_folder import put_in_place

MAX_CACHED_RELEASES = 16  # of a cache

_TIMEOUT_S = 5.0  # for the next bytes
_LONGEST_S = 60.0  # for all of a file
_MAX_BYTES = 256 * 1024 * 1024  # a release has about one
_PIECE_BYTES = 1024 * 1024
# What MLflow says where there is no such model, and no such alias.
_NO_CHAMPION = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
_QUERY = """
    SELECT tag.value, version.run_id
    FROM registered_model_aliases AS alias
    JOIN model_versions AS version ON version.name = alias.name AND version.version = alias.version
    JOIN model_version_tags AS tag ON tag.name = alias.name AND tag.version = alias.version
    WHERE alias.name = ? AND alias.alias = ? AND tag.key = ?
"""
# Whatever a file that is no registry, or a server that is none, may answer with.
_NONSENSE = (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError, sqlite3.Error)


@dataclass(frozen=True, slots=True)
class Champion:
    """The release that is to be served, and the run that its files are artifacts of."""

    release_id: str
    run_id: str

    def __post_init__(self) -> None:
        # It comes from a registry, and is to name a folder.
        if not re.fullmatch("[0-9a-f]+", self.release_id):
            raise ValueError(f"{self.release_id!r} is no release id")


def find_champion(uri: str) -> Champion | None:
    """The champion, or None where there is none.

    Raises
    ------
    RegistryError
        The registry cannot be reached, or does not answer as one.
    """
    try:
        database = database_path(uri)
        return _ask_server(uri) if database is None else _ask_database(database)
    except _NONSENSE as error:
        raise RegistryError(
            f"{uri}: cannot be asked who is champion ({_cause(error)}); check that the registry "
            f"is up, or name another with --registry or {ENVIRONMENT_VARIABLE}"
        ) from error


def find_champion_id(uri: str) -> str | None:
    """Release id of the champion; None where there is none, or where nobody can tell."""
    try:
        champion = find_champion(uri)
    except RegistryError:
        return None
    return None if champion is None else champion.release_id


def fetch_champion(uri: str, champion: Champion, cache: Path, *, signed: bool = False) -> Path:
    """The champion's folder in ``cache``, fetched unless it lies there whole.

    With ``signed`` it is always fetched, and its signature with it if it has one: a release may be
    signed after it was laid down, and two registries may hold it with different signatures.

    Raises
    ------
    RegistryError
        Its files cannot be had, or not be written.
    ReleaseError
        What came is not the release that was registered.
    """
    folder = cache / champion.release_id
    if not signed and is_intact(folder):
        _mark_used(folder)
        return folder
    partial = cache / f".{champion.release_id}.{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        _fetch_files(uri, champion, partial)
        if signed:
            _fetch_signature(uri, champion, partial)
        _check_fetched(uri, champion, partial)
        with _locked(cache):
            if signed or not is_intact(folder):  # another process may have been quicker
                put_in_place(partial, folder)
            _mark_used(folder)
            _evict_unused(cache)
    except OSError as error:
        raise RegistryError(
            f"{cache}: the champion cannot be laid down there ({error.strerror or error}); "
            "set XDG_CACHE_HOME to a folder that may be written"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _mark_used(folder: Path) -> None:
    """Make it the one used last; another user's may be read, and not be noted."""
    with contextlib.suppress(PermissionError):
        os.utime(folder)


def _evict_unused(cache: Path) -> None:
    """Remove all releases but those used last; one that is asked for again is fetched again."""
    releases = [path for path in cache.iterdir() if (path / MANIFEST).is_file()]
    releases.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in releases[MAX_CACHED_RELEASES:]:
        shutil.rmtree(path, ignore_errors=True)


def is_intact(folder: Path) -> bool:
    """Whether the release that ``folder`` is named after lies there undamaged."""
    try:
        return load_release(folder).release_id == folder.name
    except ReleaseError:
        return False


def _check_fetched(uri: str, champion: Champion, fetched: Path) -> None:
    """Refuse files that are not the champion's; errors name it, not a folder that goes away."""
    try:
        found = load_release(fetched).release_id
    except ReleaseError as error:
        said = str(error).replace(str(fetched), f"{uri}: release {champion.release_id}")
        if isinstance(error, ForeignReleaseError):
            raise ForeignReleaseError(said) from error
        # What to do with a folder, which comes last, is not what to do with a registry.
        raise ReleaseError(f"{said.rpartition('; ')[0]}; {REGISTER_AGAIN}") from error
    if found != champion.release_id:
        raise ReleaseError(
            f"{uri}: the champion is release {champion.release_id}, its files are those of "
            f"{found}; {REGISTER_AGAIN}"
        )


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """No other process puts a release in its place there; one that is killed lets go."""
    with (cache / ".lock").open("w") as lock:  # to write: NFS locks no other files
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ask_database(database: Path) -> Champion | None:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(_QUERY, (MODEL, CHAMPION, RELEASE_ID)).fetchall()
    return Champion(str(rows[0][0]), str(rows[0][1])) if rows else None


def _ask_server(uri: str) -> Champion | None:
    query = f"api/2.0/mlflow/registered-models/alias?name={MODEL}&alias={CHAMPION}"
    try:
        answer = json.loads(_get(uri, query))
    except urllib.error.HTTPError as error:
        if _says_none(error):
            return None
        raise
    version = answer["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version.get("tags", ())}
    if version["name"] == MODEL and RELEASE_ID not in tags:
        return None  # a version that somebody registered who is not Presage
    return Champion(str(tags[RELEASE_ID]), str(version["run_id"]))


def _says_none(error: urllib.error.HTTPError) -> bool:
    """Whether it is a registry that says so: any other server knows no such codes."""
    try:
        code = json.loads(error.read(65_536))["error_code"]
    except _NONSENSE:
        return False
    return error.code in {400, 404} and code in _NO_CHAMPION


def _fetch_files(uri: str, champion: Champion, to: Path) -> None:
    try:
        _fetch_file(uri, champion, MANIFEST, to)
        for name in release_files(to)[1:]:
            _fetch_file(uri, champion, name, to)
    except (HTTPException, OSError) as error:
        raise RegistryError(
            f"{uri}: the files of release {champion.release_id} cannot be had "
            f"({_cause(error)}); try `presage models show {champion.release_id} --download DIR`"
        ) from error


def _fetch_signature(uri: str, champion: Champion, to: Path) -> None:
    """Fetch a release's signature; of one that has none, nothing."""
    try:
        _fetch_file(uri, champion, SIGNATURE, to)
    except (FileNotFoundError, urllib.error.HTTPError):
        return  # MLflow says 404 or 500, by version and store
    except (HTTPException, OSError) as error:
        raise RegistryError(
            f"{uri}: the signature of release {champion.release_id} cannot be had "
            f"({_cause(error)}); check that the registry is up"
        ) from error


def _fetch_file(uri: str, champion: Champion, name: str, to: Path) -> None:
    database = database_path(uri)
    if database is not None:
        run = artifacts_folder(database, champion.run_id)
        shutil.copyfile(run / FOLDER / name, to / name)
    else:
        path, run_id = quote(f"{FOLDER}/{name}"), quote(champion.run_id)
        (to / name).write_bytes(_get(uri, f"get-artifact?path={path}&run_uuid={run_id}"))


def _get(uri: str, path: str) -> bytes:
    request = urllib.request.Request(f"{uri.rstrip('/')}/{path}")  # noqa: S310
    for name, value in _credentials().items():
        request.add_unredirected_header(name, value)  # they are for this server alone
    until_s = time.monotonic() + _LONGEST_S
    content = bytearray()
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
        while piece := reply.read1(_PIECE_BYTES):
            content += piece
            if len(content) > _MAX_BYTES:
                raise HTTPException(f"it sends more than {_MAX_BYTES} bytes")
            if time.monotonic() > until_s:
                raise TimeoutError(f"not all of it came within {_LONGEST_S:g} s")
        if reply.length:  # the connection ended before; unlike read(), read1() does not say so
            raise IncompleteRead(bytes(content), reply.length)
    return bytes(content)


def _credentials() -> dict[str, str]:
    """By MLflow's own environment variables, in its order."""
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{n}") for n in ("USERNAME", "PASSWORD"))
    if user and password:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    return {}


def _cause(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
