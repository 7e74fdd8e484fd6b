"""The champion, found and laid down without MLflow, whose import takes seconds and 175 MB.

It asks the registry itself, over REST or in the database, never a copy that could be stale.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote

from presage.features.errors import RegistryError, ReleaseError
from presage.models.registry_uri import CHAMPION, ENVIRONMENT_VARIABLE, MODEL, database_path
from presage.models.release import MANIFEST, PREDICTORS, load_release, put_in_place

# As models/registry.py lays a version's files down: under its run's artifacts.
ARTIFACTS, FOLDER = "artifacts", "release"

_TIMEOUT_S = 5
_MAX_BYTES = 256 * 1024 * 1024  # a release has about one
_QUERY = """
    SELECT tag.value, version.run_id
    FROM registered_model_aliases AS alias
    JOIN model_versions AS version ON version.name = alias.name AND version.version = alias.version
    JOIN model_version_tags AS tag ON tag.name = alias.name AND tag.version = alias.version
    WHERE alias.name = ? AND alias.alias = ? AND tag.key = 'release_id'
"""
# Whatever a file that is no registry, or a server that is none, may answer with.
_NONSENSE = (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError, sqlite3.Error)


@dataclass(frozen=True, slots=True)
class Champion:
    """The release that is to be served, and the run that its files are artifacts of."""

    release_id: str
    run_id: str


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


def peek_champion(uri: str) -> str | None:
    """Release id of the champion; None where there is none, or where nobody can tell."""
    try:
        champion = find_champion(uri)
    except RegistryError:
        return None
    return None if champion is None else champion.release_id


def lay_down(uri: str, champion: Champion, cache: Path) -> Path:
    """The champion's folder in ``cache``, fetched unless it lies there whole.

    Raises
    ------
    RegistryError
        Its files cannot be had, or not be written.
    ReleaseError
        What came is not the release that was registered.
    """
    folder = cache / champion.release_id
    if is_whole(folder):
        return folder
    partial = cache / f".{champion.release_id}.{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        _fetch(uri, champion, partial)
        found = load_release(partial).release_id
        if found != champion.release_id:
            raise ReleaseError(
                f"{uri}: the champion is release {champion.release_id}, its files are those of "
                f"{found}; register it again"
            )
        if not is_whole(folder):  # another process may have been quicker
            put_in_place(partial, folder)
    except OSError as error:
        raise RegistryError(
            f"{cache}: the champion cannot be laid down there ({error.strerror or error}); "
            "set XDG_CACHE_HOME to a folder that may be written"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether the release that ``folder`` is named after lies there undamaged."""
    try:
        return load_release(folder).release_id == folder.name
    except ReleaseError:
        return False


def _ask_database(database: Path) -> Champion | None:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(_QUERY, (MODEL, CHAMPION)).fetchall()
    return Champion(str(rows[0][0]), str(rows[0][1])) if rows else None


def _ask_server(uri: str) -> Champion | None:
    query = f"api/2.0/mlflow/registered-models/alias?name={MODEL}&alias={CHAMPION}"
    try:
        answer = json.loads(_get(uri, query))
    except urllib.error.HTTPError as error:
        # A registry without the model or the alias says so; any other server knows no such code.
        if error.code in {400, 404} and b"RESOURCE_DOES_NOT_EXIST" in _body(error):
            return None
        raise
    version = answer["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version["tags"]}
    return Champion(str(tags["release_id"]), str(version["run_id"]))


def _fetch(uri: str, champion: Champion, to: Path) -> None:
    names = (MANIFEST, *(f"{name}.onnx" for name in PREDICTORS))
    database = database_path(uri)
    try:
        for name in names:
            if database is not None:
                run = database.parent / ARTIFACTS / champion.run_id / ARTIFACTS
                shutil.copyfile(run / FOLDER / name, to / name)
            else:
                path, run_id = quote(f"{FOLDER}/{name}"), quote(champion.run_id)
                (to / name).write_bytes(_get(uri, f"get-artifact?path={path}&run_uuid={run_id}"))
    except (HTTPException, OSError) as error:
        raise RegistryError(
            f"{uri}: the files of release {champion.release_id} cannot be had "
            f"({_cause(error)}); try `presage models show {champion.release_id} --download DIR`"
        ) from error


def _get(uri: str, path: str) -> bytes:
    request = urllib.request.Request(f"{uri.rstrip('/')}/{path}", headers=_credentials())  # noqa: S310
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
        content: bytes = reply.read(_MAX_BYTES)
    return content


def _credentials() -> dict[str, str]:
    """By MLflow's own environment variables."""
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    if user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(65_536)
    except OSError:
        return b""


def _cause(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
