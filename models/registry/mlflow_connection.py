"""MLflow's client, created on first use, with errors of one line."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from presage.errors import RegistryError
from presage.models.registry.uri import (
    ENVIRONMENT_VARIABLE,
    MODEL,
    SQLITE,
    check_database,
    database_path,
)

# Settings that MLflow reads at import; values of the user take precedence. MLflow's defaults are
# seven tries of two minutes each, far too long to report that a server is down.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class ModelClient:
    """MLflow's client, with the names of a registered model and of its promotion journal.

    Attributes
    ----------
    model, journal : str
    """

    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self.model, self.journal = model, f"{model}-journal"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class MlflowConnection:
    """Connection to a model of the registry at ``uri``, opened by the first :meth:`connect`.

    Attributes
    ----------
    model : str
        Name of the registered model.
    database : Path or None
        The registry's SQLite file; None for a server.
    """

    def __init__(self, uri: str, model: str = MODEL) -> None:
        self.uri, self.model = uri, model
        self.database = database_path(uri)
        self._client: Any = None

    @contextmanager
    def connect(self, action: str, *, create: bool = False) -> Iterator[Any]:
        """Yield the client.

        Parameters
        ----------
        action : str
            Action of the block, for error messages: "list releases".
        create : bool
            Whether to create a database that does not exist.

        Raises
        ------
        RegistryError
            MLflow is not installed, or fails in the block.
        """
        if self._client is None and self.database is not None:
            check_database(self.uri, self.database, create=create)
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise RegistryError(
                f"cannot {action}: MLflow is not installed; pip install 'presage[train]'"
            ) from error
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        uri = self.uri if self.database is None else f"{SQLITE}{self.database}"
        try:
            if self._client is None:
                client = MlflowClient(tracking_uri=uri, registry_uri=uri)
                self._client = ModelClient(client, self.model)
            yield self._client
        except (MlflowException, OSError) as error:
            raise RegistryError(
                f"{self.uri}: cannot {action} ({root_cause(error)}); check that the registry is up "
                f"and writable, or name another with --registry or {ENVIRONMENT_VARIABLE}"
            ) from error


def root_cause(error: Exception) -> str:
    """Return the cause of an error, extracted from the long message of an HTTP client."""
    reason = re.search(r"\[Errno -?\d+\] [^\"')]+", str(error))
    return reason.group() if reason else (str(error).splitlines() or [type(error).__name__])[0]
