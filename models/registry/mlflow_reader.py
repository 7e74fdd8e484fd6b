"""Reads of a registered model and its journal without MLflow's client, whose import takes seconds.

:class:`MlflowReader` has the two methods of the client that reading needs, with the client's names
and attributes of results, so that the code that reads them works with either.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from presage.errors import RegistryError
from presage.models.registry.mlflow_connection import MlflowConnection, root_cause
from presage.models.registry.mlflow_store import READ_ERRORS, get
from presage.models.registry.uri import (
    ENVIRONMENT_VARIABLE,
    check_database,
    database_path,
)

_ALIASES = "SELECT alias, version FROM registered_model_aliases WHERE name = ?"
_MODELS = "SELECT name FROM registered_models WHERE name = ?"
_VERSIONS = """
    SELECT version, run_id, creation_time FROM model_versions
    WHERE name = ? AND current_stage IS NOT 'Deleted_Internal'
"""
_TAGS = "SELECT version, key, value FROM model_version_tags WHERE name = ?"
_PAGE = 1000  # versions; MLflow's servers return at most 200,000 at once


@dataclass(frozen=True, slots=True)
class ModelWithAliases:
    """Registered model: the version that each alias names."""

    aliases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """Version of a registered model, with the attributes of MLflow's."""

    version: int
    run_id: str
    creation_timestamp: int
    tags: dict[str, str] = field(default_factory=dict)


class Versions(list[ModelVersion]):
    """All versions; ``token`` is empty because there is no further page."""

    token = ""


class MlflowReader:
    """Reader of the registry at ``uri``, with the names of a registered model and its journal.

    Attributes
    ----------
    model, journal : str
    """

    def __init__(self, uri: str, model: str) -> None:
        self.model, self.journal = model, f"{model}-journal"
        self._uri, self._database = uri, database_path(uri)

    def search_registered_models(self, condition: str) -> list[ModelWithAliases]:
        """Return the model of the condition ``name='MODEL'``, or an empty list."""
        name = _name(condition)
        if self._database is not None:
            with self._rows() as rows:
                if _is_new(rows) or not rows.execute(_MODELS, (name,)).fetchall():
                    return []
                return [ModelWithAliases(dict(rows.execute(_ALIASES, (name,)).fetchall()))]
        found = self._json("registered-models/search", filter=condition)
        return [
            ModelWithAliases(
                {one["alias"]: int(one["version"]) for one in model.get("aliases", ())}
            )
            for model in found.get("registered_models", ())
        ]

    def search_model_versions(self, condition: str, **_page: object) -> Versions:
        """Return all versions of the condition ``name='MODEL'``."""
        name = _name(condition)
        if self._database is not None:
            with self._rows() as rows:
                if _is_new(rows):
                    return Versions()
                tags = rows.execute(_TAGS, (name,)).fetchall()
                return _with_tags(rows.execute(_VERSIONS, (name,)).fetchall(), tags)
        return Versions(self._server_versions(condition))

    def _server_versions(self, condition: str) -> Iterable[ModelVersion]:
        token = ""
        while True:
            page = {"filter": condition, "max_results": str(_PAGE), "page_token": token}
            found = self._json("model-versions/search", **page)
            for one in found.get("model_versions", ()):
                tags = {tag["key"]: tag["value"] for tag in one.get("tags", ())}
                yield ModelVersion(
                    int(one["version"]), one.get("run_id", ""), int(one["creation_timestamp"]), tags
                )
            token = found.get("next_page_token", "")
            if not token:
                return

    def _rows(self) -> closing[sqlite3.Connection]:
        assert self._database is not None
        return closing(sqlite3.connect(f"{self._database.as_uri()}?mode=ro", uri=True))

    def _json(self, method: str, **parameters: str) -> dict[str, Any]:
        given = {name: value for name, value in parameters.items() if value}
        query = f"api/2.0/mlflow/{method}?{urlencode(given)}"
        reply: dict[str, Any] = json.loads(get(self._uri, query))
        return reply


@contextmanager
def reading(connection: MlflowConnection, action: str) -> Iterator[MlflowReader]:
    """Yield a reader of a connection's registry.

    Raises
    ------
    RegistryError
        The registry does not exist, cannot be read, or is none; ``action`` says what failed.
    """
    if connection.database is not None:
        check_database(connection.uri, connection.database, create=False)
    try:
        yield MlflowReader(connection.uri, connection.model)
    except READ_ERRORS as error:
        cause = getattr(error, "reason", error)  # of a URLError
        text = root_cause(cause) if isinstance(cause, Exception) else str(error)
        raise RegistryError(
            f"{connection.uri}: cannot {action} ({text}); check that the registry is up, or name "
            f"another with --registry or {ENVIRONMENT_VARIABLE}"
        ) from error


def _is_new(rows: sqlite3.Connection) -> bool:
    """Return whether a database has no tables yet: MLflow creates them at its first write."""
    return not rows.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()


def _name(condition: str) -> str:
    """Return MODEL of ``name='MODEL'``."""
    return condition.removeprefix("name='").removesuffix("'")


def _with_tags(
    versions: Iterable[tuple[int, str, int]], tags: Iterable[tuple[int, str, str]]
) -> Versions:
    of_version: dict[int, dict[str, str]] = {}
    for number, key, value in tags:
        of_version.setdefault(number, {})[key] = value
    return Versions(
        ModelVersion(number, run_id, created_ms, of_version.get(number, {}))
        for number, run_id, created_ms in versions
    )
