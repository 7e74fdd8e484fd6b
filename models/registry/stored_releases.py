"""Files of registered releases: artifacts of MLflow runs, next to the database or on a server."""

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
from presage.models.registry.mlflow_reader import reading
from presage.models.registry.mlflow_store import fetch_artifact
from presage.models.registry.registered_release import RegisteredRelease
from presage.models.registry.release_kind import RegistrableRelease, ReleaseKind
from presage.models.registry.uri import (
    ARTIFACTS,
    FOLDER,
    REGISTER_AGAIN,
    artifacts_folder,
)
from presage.models.release.manifest import read_manifest
from presage.models.release.release import MANIFEST, SIGNATURE, Release
from presage.system.files.atomic_folder import replaced_folder


class StoredReleases:
    """Files of the releases of one registry.

    The files of a database are in ``artifacts/`` next to it, also after it was moved.
    """

    def __init__(self, connection: MlflowConnection, kind: ReleaseKind) -> None:
        self._connection, self._kind = connection, kind

    def fetch(self, release: RegisteredRelease, target: Path, artifact: str = FOLDER) -> None:
        """Copy a version's files, or one of them, to ``target``, which must not exist."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._connection.database is not None:
            local = self._local_path(release, artifact)
            if local.exists():
                (shutil.copytree if local.is_dir() else shutil.copyfile)(local, target)
                return
        with self._connection.connect(f"download version {release.version}"):
            from mlflow.artifacts import download_artifacts

            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
                found = download_artifacts(
                    run_id=release.run_id,
                    artifact_path=artifact,
                    dst_path=folder,
                    tracking_uri=self._connection.uri,
                )
                Path(found).rename(target)

    def load(self, folder: Path, release: RegisteredRelease) -> Release:
        """Load a fetched release; errors name its version, not the temporary folder."""
        where = f"version {release.version} ({release.release_id})"
        try:
            found = read_manifest(folder / MANIFEST).get("release_id")
            if found != release.release_id:
                raise ReleaseError(f"{folder}: its files are those of release {one_line(found)}; ")
            loaded: Release = self._kind.load(folder)
        except ForeignReleaseError as error:
            raise ForeignReleaseError(str(error).replace(str(folder), where)) from error
        except ReleaseError as error:
            # The remedy at the end of the message is for a folder, not for a registry.
            damage = str(error).replace(str(folder), where).rpartition("; ")[0]
            raise ReleaseError(
                f"{self._connection.uri}: {damage}; the registry's files are corrupt: "
                f"{REGISTER_AGAIN}, with DIR an intact folder of release {release.release_id}"
            ) from error
        return loaded

    def manifest(self, release: RegisteredRelease) -> dict[str, Any]:
        """Return ``release.json`` of a version, also if this version of Presage cannot serve it."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / MANIFEST
            with reading(self._connection, f"read {MANIFEST} of version {release.version}"):
                fetch_artifact(self._connection.uri, release.run_id, f"{FOLDER}/{MANIFEST}", path)
            try:
                content: dict[str, Any] = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                raise ReleaseError(
                    f"version {release.version}: its {MANIFEST} cannot be read "
                    f"({root_cause(error)}); {REGISTER_AGAIN}"
                ) from error
        return content

    def attach_signature(self, release: RegisteredRelease, signature: Path) -> None:
        """Store a signature with a release's manifest, replacing an older one."""
        with self._connection.connect(f"sign version {release.version}") as client:
            if self._connection.database is None:
                client.log_artifact(release.run_id, str(signature), FOLDER)
                return
            local = self._local_path(release, FOLDER)
            partial = local / f".{SIGNATURE}.{secrets.token_hex(4)}"
            shutil.copyfile(signature, partial)
            partial.replace(local / SIGNATURE)

    def restore(self, client: Any, known: RegisteredRelease, release: RegistrableRelease) -> None:
        """Store a version's files again, with those of MLflow, unless they are intact."""
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / FOLDER
            # RegistryError: the files are missing, or the registry is down, which storing reports.
            with suppress(ReleaseError, RegistryError):
                self.fetch(known, stored)
                self.load(stored, known)
                # Files of a copied database may come from its old place; servers read the new one.
                is_local = (
                    self._connection.database is None or self._local_path(known, FOLDER).exists()
                )
                if (
                    is_local
                    and (stored / self._kind.marker).is_file()
                    and _is_signature_stored(stored, release)
                ):
                    return
        with self._kind.stored(release) as folder:
            if self._connection.database is None:
                client.log_artifacts(known.run_id, str(folder), FOLDER)
                return
            local = self._local_path(known, FOLDER)
            with replaced_folder(local) as partial:
                shutil.copytree(folder, partial, dirs_exist_ok=True)
                if (local / SIGNATURE).is_file() and not (partial / SIGNATURE).exists():
                    shutil.copyfile(local / SIGNATURE, partial / SIGNATURE)

    def experiment(self, client: Any) -> str:
        """Return the experiment whose artifacts are next to the database; create it if needed.

        MLflow stores an absolute path. A registry that was moved or copied gets a second
        experiment, because it must not write into its old folder.
        """
        from mlflow.exceptions import MlflowException

        location = (
            None
            if self._connection.database is None
            else str(self._connection.database.parent / ARTIFACTS)
        )
        for name in (self._kind.model, f"{self._kind.model}, moved to {location}"):
            found = client.get_experiment_by_name(name)
            if found is None:
                try:
                    return str(client.create_experiment(name, artifact_location=location))
                except MlflowException:
                    # Another process may have created it meanwhile.
                    found = client.get_experiment_by_name(name)
                    if found is None:
                        raise
            if location in (None, found.artifact_location):
                return str(found.experiment_id)
        raise RegistryError(
            f"{self._connection.uri}: no experiment for {location}; give another registry"
        )

    def _local_path(self, release: RegisteredRelease, artifact: str) -> Path:
        """Return the path of an artifact next to the database."""
        assert self._connection.database is not None
        return artifacts_folder(self._connection.database, release.run_id) / artifact


def _is_signature_stored(stored: Path, release: RegistrableRelease) -> bool:
    """Return whether stored files include the signature of a release, if it has one."""
    if not (release.folder / SIGNATURE).is_file():
        return True
    return all(
        (stored / name).is_file()
        and (stored / name).read_bytes() == (release.folder / name).read_bytes()
        for name in (MANIFEST, SIGNATURE)
    )
