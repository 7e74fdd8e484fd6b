"""Direct reads of MLflow's store: its SQLite tables, or the REST API of an ``mlflow server``.

MLflow's client is not used here: importing it takes seconds and 175 MB of memory, which every
server and every `dvc repro` would pay to learn one release id. Only this module and
:mod:`presage.models.registry.mlflow_reader` depend on MLflow's table names and REST paths. Whatever
writes uses the client (:mod:`presage.models.registry.mlflow_connection`).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.parse import quote

from presage.models.registry.uri import MODEL, RELEASE_ID, artifacts_folder, database_path

# Exceptions of reading a file that is not a registry, or the reply of another kind of server.
READ_ERRORS = (
    OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError, sqlite3.Error,
)  # fmt: skip

TIMEOUT_S = 5.0  # for the next bytes
MAX_DOWNLOAD_S = 60.0  # for a whole file
MAX_BYTES = 256 * 1024 * 1024  # a release has about 1 MB
_CHUNK_BYTES = 1024 * 1024
# Error codes of MLflow for a missing model and a missing alias.
_MISSING = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
_QUERY = """
    SELECT tag.value, version.run_id
    FROM registered_model_aliases AS alias
    JOIN model_versions AS version ON version.name = alias.name AND version.version = alias.version
    JOIN model_version_tags AS tag ON tag.name = alias.name AND tag.version = alias.version
    WHERE alias.name = ? AND alias.alias = ? AND tag.key = ?
"""


@dataclass(frozen=True, slots=True)
class AliasedVersion:
    """Model version that an alias names: its release id and its run."""

    release_id: str
    run_id: str


def read_alias(uri: str, alias: str, model: str = MODEL) -> AliasedVersion | None:
    """Return the version that an alias of a registered model names.

    None if there is no such model or alias, or if Presage did not register the version.

    Raises
    ------
    One of READ_ERRORS
        The registry cannot be reached, or is not a registry.
    """
    database = database_path(uri)
    if database is None:
        return _read_alias_from_server(uri, alias, model)
    return _read_alias_from_database(database, alias, model)


def fetch_artifact(uri: str, run_id: str, path: str, target: Path) -> None:
    """Copy one artifact of a run, such as ``release/memory.onnx``, to the file ``target``.

    Raises
    ------
    OSError, HTTPException
        The artifact does not exist, or cannot be read or written.
    """
    database = database_path(uri)
    if database is not None:
        shutil.copyfile(artifacts_folder(database, run_id) / path, target)
    else:
        query = f"get-artifact?path={quote(path)}&run_uuid={quote(run_id)}"
        target.write_bytes(get(uri, query))


def _read_alias_from_database(database: Path, alias: str, model: str) -> AliasedVersion | None:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(_QUERY, (model, alias, RELEASE_ID)).fetchall()
    return AliasedVersion(str(rows[0][0]), str(rows[0][1])) if rows else None


def _read_alias_from_server(uri: str, alias: str, model: str) -> AliasedVersion | None:
    query = f"api/2.0/mlflow/registered-models/alias?name={model}&alias={alias}"
    try:
        reply = json.loads(get(uri, query))
    except urllib.error.HTTPError as error:
        if _is_missing(error):
            return None
        raise
    version = reply["model_version"]
    tags = {tag["key"]: tag["value"] for tag in version.get("tags", ())}
    if version["name"] == model and RELEASE_ID not in tags:
        return None  # not registered by Presage
    return AliasedVersion(str(tags[RELEASE_ID]), str(version["run_id"]))


def _is_missing(error: urllib.error.HTTPError) -> bool:
    """Return whether MLflow reports a missing model or alias; other servers lack these codes."""
    try:
        code = json.loads(error.read(65_536))["error_code"]
    except READ_ERRORS:
        return False
    return error.code in {400, 404} and code in _MISSING


def get(uri: str, path: str) -> bytes:
    """Return the reply of an ``mlflow server`` at ``uri`` to a path with a query.

    Raises
    ------
    OSError, HTTPException
        The server cannot be reached or reports an error, or the reply is too large or too slow.
    """
    request = urllib.request.Request(f"{uri.rstrip('/')}/{path}")  # noqa: S310
    for name, value in _credentials().items():
        request.add_unredirected_header(name, value)  # not sent to other servers
    end_s = time.monotonic() + MAX_DOWNLOAD_S
    content = bytearray()
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
        while chunk := reply.read1(_CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_BYTES:
                raise HTTPException(f"the reply has more than {MAX_BYTES} bytes")
            if time.monotonic() > end_s:
                raise TimeoutError(f"the reply took more than {MAX_DOWNLOAD_S:g} s")
        if reply.length:  # the connection ended early, which read1() does not report
            raise IncompleteRead(bytes(content), reply.length)
    return bytes(content)


def _credentials() -> dict[str, str]:
    """Return the authorization header from MLflow's environment variables, in its order."""
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{n}") for n in ("USERNAME", "PASSWORD"))
    if user and password:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    return {}
