"""Kinds of releases in a registry: each has a registered model of its own, with its own journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from presage.models.registry.mlflow_model_files import mlflow_model_folder
from presage.models.registry.uri import MODEL
from presage.models.release.release import load_release, release_files


class RegistrableRelease(Protocol):
    """Release folder that a registry can store. Its manifest is ``release.json``.

    Attributes
    ----------
    manifest : mapping
        It has ``data_digest``, ``schema_hash`` and ``versions``.
    search_params : mapping of str to str
        Values by which MLflow finds the release.
    """

    @property
    def folder(self) -> Path: ...  # noqa: D102

    @property
    def release_id(self) -> str: ...  # noqa: D102

    @property
    def manifest(self) -> Mapping[str, Any]: ...  # noqa: D102

    @property
    def search_params(self) -> Mapping[str, str]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class ReleaseKind:
    """Kind of releases: its name in MLflow, and the format of its folders.

    Attributes
    ----------
    model : str
        Registered model; ``MODEL-journal`` has its promotion journal.
    load : callable
        Loads and verifies a release folder.
    files : callable
        Returns the names of the files of a release folder.
    stored : callable
        Yields a temporary folder with the files to store in MLflow.
    marker : str
        File that every stored folder has.
    """

    model: str
    load: Callable[[Path], Any]
    files: Callable[[Path], tuple[str, ...]]
    stored: Callable[[Any], AbstractContextManager[Path]]
    marker: str


PREDICTORS = ReleaseKind(MODEL, load_release, release_files, mlflow_model_folder, "MLmodel")
