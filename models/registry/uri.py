"""Address of the registry and access to its database, without MLflow."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from presage.errors import ConfigError, RegistryError
from presage.system.files.data_folder import data_folder

MODEL = "presage"
CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
ENVIRONMENT_VARIABLE = "PRESAGE_REGISTRY"
# Remedy if stored files are not those that were registered.
REGISTER_AGAIN = "register it again with `presage models register DIR`"
SQLITE = "sqlite:///"
RELEASE_ID = "release_id"  # tag of every version that Presage registered
ARTIFACTS, FOLDER = "artifacts", "release"  # folders of a version's files

_LOCK_TIMEOUT_S = 20.0  # while another process writes, as in MLflow


def configured_uri(params: Path = Path("params.yaml")) -> str:
    """Return the URI of the registry: of the environment, else of params.yaml, else the default.

    The default is a SQLite file in :func:`presage.system.files.data_folder.data_folder`.

    Raises
    ------
    ConfigError
        params.yaml has the registry in the section ``promote``, where it is not read.
    """
    import yaml

    if uri := os.environ.get(ENVIRONMENT_VARIABLE):
        return uri
    content = yaml.safe_load(params.read_text()) if params.is_file() else {}
    if "registry" in (content.get("promote") or {}):
        raise ConfigError(
            f"{params}: unknown key promote.registry; move it to the top level, as `registry:`"
        )
    return str(content.get("registry") or f"{SQLITE}{data_folder()}/registry/mlflow.db")


def database_path(uri: str) -> Path | None:
    """Return the SQLite file of a registry; None for a server.

    Raises
    ------
    RegistryError
        The URI is neither.
    """
    if uri.startswith(("http://", "https://")):
        return None
    if uri.startswith(SQLITE) and uri != SQLITE:
        return Path(uri.removeprefix(SQLITE)).resolve()
    raise RegistryError(
        f"registry {uri!r}: expected sqlite:///PATH, or http(s)://HOST of an `mlflow server`"
    )


def artifacts_folder(database: Path, run_id: str) -> Path:
    """Return the folder of a run's files, next to the registry's database."""
    return database.parent / ARTIFACTS / run_id / ARTIFACTS


def check_database(uri: str, database: Path, *, create: bool) -> None:
    """Raise RegistryError if SQLite cannot use a file, where MLflow would retry for minutes."""
    if not create and not database.exists():
        raise RegistryError(
            f"{uri}: the registry does not exist; create it with `dvc repro`, or name another with "
            f"--registry or {ENVIRONMENT_VARIABLE}"
        )
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(database, timeout=_LOCK_TIMEOUT_S)) as connection:
            connection.execute("BEGIN IMMEDIATE" if create else "PRAGMA schema_version")
            connection.rollback()
    except (OSError, sqlite3.Error) as error:
        raise RegistryError(
            f"{uri}: {database} cannot be used as a database ({error}); make its folder writable, "
            f"or name another with --registry or {ENVIRONMENT_VARIABLE}"
        ) from error
