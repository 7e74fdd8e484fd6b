"""Files of registered releases: artifacts of MLflow's runs, next to the database or on a server."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from presage.errors import ForeignReleaseError, RegistryError, ReleaseError, one_line
from presage.models.registry.mlflow_connection import MlflowConnection, root_cause
from presage.models.registry.mlflow_model_files import mlflow_model_folder
from presage.models.registry.registered_release import RegisteredRelease
from presage.models.registry.uri import (
    ARTIFACTS,
    FOLDER,
    MODEL,
    REGISTER_AGAIN,
    artifacts_folder,
)
from presage.models.release.manifest import read_manifest
from presage.models.release.release import MANIFEST, SIGNATURE, Release, load_release
from presage.system.files.atomic_folder import replaced_folder

MLMODEL = "MLmodel"  # the file by which MLflow knows a model


class StoredReleases:
    """Files of the releases of one registry.

    A database's files lie in ``artifacts/`` next to it, wherever it was moved to since.
    """

    def __init__(self, connection: MlflowConnection) -> None:
        self._connection = connection

    def fetch(self, release: RegisteredRelease, to: Path, what: str = FOLDER) -> None:
        """Copy a version's files, or one of them, to ``to``, which must not exist."""
        to.parent.mkdir(parents=True, exist_ok=True)
        if self._connection.database is not None:
            beside = self._beside(release, what)
            if beside.exists():
                (shutil.copytree if beside.is_dir() else shutil.copyfile)(beside, to)
                return
        with self._connection.connect(f"download version {release.version}"):
            from mlflow.artifacts import download_artifacts

            with tempfile.TemporaryDirectory(dir=to.parent, prefix=".") as folder:
                found = download_artifacts(
                    run_id=release.run_id,
                    artifact_path=what,
                    dst_path=folder,
                    tracking_uri=self._connection.uri,
                )
                Path(found).rename(to)

    def load(self, folder: Path, release: RegisteredRelease) -> Release:
        """Load a release that was fetched; errors name its version, not the temporary folder."""
        where = f"version {release.version} ({release.release_id})"
        try:
            found = read_manifest(folder / MANIFEST).get("release_id")
            if found != release.release_id:
                raise ReleaseError(f"{folder}: its files are of release {one_line(found)}; ")
            return load_release(folder)
        except ForeignReleaseError as error:
            raise ForeignReleaseError(str(error).replace(str(folder), where)) from error
        except ReleaseError as error:
            # What to do with a folder, which comes last, is not what to do with a registry.
            damage = str(error).replace(str(folder), where).rpartition("; ")[0]
            raise ReleaseError(
                f"{self._connection.uri}: {damage}; the registry's files are damaged: "
                f"{REGISTER_AGAIN}, DIR being a whole folder of release {release.release_id}"
            ) from error

    def manifest(self, release: RegisteredRelease) -> dict[str, Any]:
        """Return ``release.json`` of a version, also of one that cannot be served here."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / MANIFEST
            self.fetch(release, path, f"{FOLDER}/{MANIFEST}")
            try:
                content: dict[str, Any] = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise ReleaseError(
                    f"version {release.version}: no {MANIFEST} can be read from it "
                    f"({root_cause(error)}); {REGISTER_AGAIN}"
                ) from error
        return content

    def attach_signature(self, release: RegisteredRelease, signature: Path) -> None:
        """Store a signature with a release's manifest, in place of an older one."""
        with self._connection.connect(f"sign version {release.version}") as client:
            if self._connection.database is None:
                client.log_artifact(release.run_id, str(signature), FOLDER)
                return
            beside = self._beside(release, FOLDER)
            partial = beside / f".{SIGNATURE}.{secrets.token_hex(4)}"
            shutil.copyfile(signature, partial)
            partial.replace(beside / SIGNATURE)

    def restore(self, client: Any, known: RegisteredRelease, release: Release) -> None:
        """Store a version's files again, MLflow's among them, unless they are there and whole."""
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / FOLDER
            # RegistryError: none are there, or the registry is away, which putting them back tells.
            with suppress(ReleaseError, RegistryError):
                self.fetch(known, stored)
                self.load(stored, known)
                # Of a copied database they may come from where it was; a server looks beside it.
                is_here = self._connection.database is None or self._beside(known, FOLDER).exists()
                if (
                    is_here
                    and (stored / MLMODEL).is_file()
                    and _is_signature_stored(stored, release)
                ):
                    return
        with mlflow_model_folder(release) as whole:
            if self._connection.database is None:
                client.log_artifacts(known.run_id, str(whole), FOLDER)
                return
            beside = self._beside(known, FOLDER)
            with replaced_folder(beside) as partial:
                shutil.copytree(whole, partial, dirs_exist_ok=True)
                if (beside / SIGNATURE).is_file() and not (partial / SIGNATURE).exists():
                    shutil.copyfile(beside / SIGNATURE, partial / SIGNATURE)

    def experiment(self, client: Any) -> str:
        """Return the experiment whose artifacts lie next to the database; create it if needed.

        MLflow stores the absolute path. A registry that was moved or copied gets a second
        experiment: it must not write into the folder that it came from.
        """
        from mlflow.exceptions import MlflowException

        location = (
            None
            if self._connection.database is None
            else str(self._connection.database.parent / ARTIFACTS)
        )
        for name in (MODEL, f"{MODEL}, moved to {location}"):
            found = client.get_experiment_by_name(name)
            if found is None:
                try:
                    return str(client.create_experiment(name, artifact_location=location))
                except MlflowException:
                    # Perhaps another process made it meanwhile.
                    found = client.get_experiment_by_name(name)
                    if found is None:
                        raise
            if location in (None, found.artifact_location):
                return str(found.experiment_id)
        raise RegistryError(
            f"{self._connection.uri}: no experiment for {location}; give another registry"
        )

    def _beside(self, release: RegisteredRelease, what: str) -> Path:
        assert self._connection.database is not None
        return artifacts_folder(self._connection.database, release.run_id) / what


def _is_signature_stored(stored: Path, release: Release) -> bool:
    """Return whether stored files have a release's manifest, and its signature if it has one."""
    if not (release.folder / SIGNATURE).is_file():
        return True
    return all(
        (stored / name).is_file()
        and (stored / name).read_bytes() == (release.folder / name).read_bytes()
        for name in (MANIFEST, SIGNATURE)
    )
