"""Where the registry is, whether it can be used, and who is champion, all without MLflow."""

from __future__ import annotations

import json
import os
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path

from presage.features.errors import RegistryError

MODEL = "presage"
CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
DEFAULT_URI = "sqlite:///data/registry/mlflow.db"
ENVIRONMENT_VARIABLE = "PRESAGE_REGISTRY"
SQLITE = "sqlite:///"

_PEEK_TIMEOUT_S = 3


def configured_uri(params: Path = Path("params.yaml")) -> str:
    """Registry to use: of the environment, else of params.yaml, else beside the data."""
    import yaml

    if uri := os.environ.get(ENVIRONMENT_VARIABLE):
        return uri
    content = yaml.safe_load(params.read_text()) if params.is_file() else {}
    return str((content.get("promote") or {}).get("registry") or DEFAULT_URI)


def peek_champion(uri: str) -> str | None:
    """Release id of the champion, read without MLflow, whose import takes seconds.

    It asks the registry itself, over REST or in the database, never a copy that could be stale.
    None when there is no champion, or when this short way does not work (another version's
    database, a server that wants a password): then ask :class:`Registry`.
    """
    try:
        database = database_path(uri)
        return _peek_server(uri) if database is None else _peek_database(database)
    except (OSError, ValueError, KeyError, TypeError, sqlite3.Error):
        return None


def _peek_database(database: Path) -> str | None:
    query = (
        "SELECT tag.value FROM registered_model_aliases AS alias JOIN model_version_tags AS tag "
        "ON tag.name = alias.name AND tag.version = alias.version "
        "WHERE alias.name = ? AND alias.alias = ? AND tag.key = 'release_id'"
    )
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(query, (MODEL, CHAMPION)).fetchall()
    return str(rows[0][0]) if len(rows) == 1 else None


def _peek_server(uri: str) -> str | None:
    path = f"api/2.0/mlflow/registered-models/alias?name={MODEL}&alias={CHAMPION}"
    with urllib.request.urlopen(f"{uri.rstrip('/')}/{path}", timeout=_PEEK_TIMEOUT_S) as reply:  # noqa: S310
        tags = json.load(reply)["model_version"]["tags"]
    return next((str(tag["value"]) for tag in tags if tag["key"] == "release_id"), None)


def database_path(uri: str) -> Path | None:
    """SQLite file of a registry, None for a server."""
    if uri.startswith(("http://", "https://")):
        return None
    if uri.startswith(SQLITE) and uri != SQLITE:
        return Path(uri.removeprefix(SQLITE)).resolve()
    raise RegistryError(
        f"registry {uri!r}: give sqlite:///PATH, or http(s)://HOST of an `mlflow server`"
    )


def check_database(uri: str, database: Path, *, create: bool) -> None:
    """Refuse at once a file that SQLite cannot use: MLflow would try again for minutes."""
    if not create and not database.exists():
        raise RegistryError(
            f"{uri}: no registry there; `dvc repro` makes one, or name another with --registry "
            f"or {ENVIRONMENT_VARIABLE}"
        )
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("BEGIN IMMEDIATE" if create else "PRAGMA schema_version")
            connection.rollback()
    except (OSError, sqlite3.Error) as error:
        raise RegistryError(
            f"{uri}: {database} cannot be used as a database ({error}); make its folder writable, "
            f"or name another with --registry or {ENVIRONMENT_VARIABLE}"
        ) from error
