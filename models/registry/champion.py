"""The champion release: finding it in the registry, and fetching its files into a cache.

It is read from the registry itself, never from a copy that could be stale, and without importing
MLflow (:mod:`presage.models.registry.mlflow_store`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from presage.errors import ForeignReleaseError, RegistryError, ReleaseError
from presage.models.registry.mlflow_store import READ_ERRORS, fetch_artifact, read_alias
from presage.models.registry.uri import CHAMPION, ENVIRONMENT_VARIABLE, FOLDER, REGISTER_AGAIN
from presage.models.release.release import MANIFEST, SIGNATURE, load_release, release_files
from presage.system.files.atomic_folder import put_in_place

MAX_CACHED_RELEASES = 16


@dataclass(frozen=True, slots=True)
class Champion:
    """Release to serve, and the MLflow run whose artifacts are its files."""

    release_id: str
    run_id: str

    def __post_init__(self) -> None:
        # The id comes from the registry and becomes the name of a folder.
        if not re.fullmatch("[0-9a-f]+", self.release_id):
            raise ValueError(f"{self.release_id!r} is not a release id")


def find_champion(uri: str) -> Champion | None:
    """Return the champion; None if there is none.

    Raises
    ------
    RegistryError
        The registry cannot be reached, or is not a registry.
    """
    try:
        found = read_alias(uri, CHAMPION)
        return None if found is None else Champion(found.release_id, found.run_id)
    except READ_ERRORS as error:
        raise RegistryError(
            f"{uri}: the champion cannot be read ({_cause(error)}); check that the registry "
            f"is up, or name another with --registry or {ENVIRONMENT_VARIABLE}"
        ) from error


def find_champion_id(uri: str) -> str | None:
    """Return the release id of the champion; None if there is none, or it cannot be read."""
    try:
        champion = find_champion(uri)
    except RegistryError:
        return None
    return None if champion is None else champion.release_id


def fetch_champion(uri: str, champion: Champion, cache: Path, *, signed: bool = False) -> Path:
    """Fetch the champion's files into ``cache`` unless they are there; return their folder.

    With ``signed`` the files are always fetched, with the signature if there is one: a release may
    be signed after it was cached, and two registries may have it with different signatures.

    Raises
    ------
    RegistryError
        The files cannot be fetched or written.
    ReleaseError
        The files are not the release that was registered.
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
            if signed or not is_intact(folder):  # another process may have been faster
                put_in_place(partial, folder)
            _mark_used(folder)
            _evict_unused(cache)
    except OSError as error:
        raise RegistryError(
            f"{cache}: the champion cannot be cached there ({error.strerror or error}); "
            "set XDG_CACHE_HOME to a writable folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def is_intact(folder: Path) -> bool:
    """Return whether ``folder`` has the release that it is named after, unchanged."""
    try:
        return load_release(folder).release_id == folder.name
    except ReleaseError:
        return False


def _mark_used(folder: Path) -> None:
    """Make a release the most recently used one, unless the folder is another user's."""
    with contextlib.suppress(PermissionError):
        os.utime(folder)


def _evict_unused(cache: Path) -> None:
    """Remove all releases but the most recently used ones."""
    releases = [path for path in cache.iterdir() if (path / MANIFEST).is_file()]
    releases.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in releases[MAX_CACHED_RELEASES:]:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Lock the cache against other processes; the lock ends with the process."""
    with (cache / ".lock").open("w") as lock:  # writable, which locks on NFS require
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_fetched(uri: str, champion: Champion, fetched: Path) -> None:
    """Raise ReleaseError unless files are the champion's; messages name it, not the folder."""
    try:
        found = load_release(fetched).release_id
    except ReleaseError as error:
        message = str(error).replace(str(fetched), f"{uri}: release {champion.release_id}")
        if isinstance(error, ForeignReleaseError):
            raise ForeignReleaseError(message) from error
        # The remedy at the end of the message is for a folder, not for a registry.
        raise ReleaseError(f"{message.rpartition('; ')[0]}; {REGISTER_AGAIN}") from error
    if found != champion.release_id:
        raise ReleaseError(
            f"{uri}: the champion is release {champion.release_id}, but its files are those of "
            f"{found}; {REGISTER_AGAIN}"
        )


def _fetch_files(uri: str, champion: Champion, target: Path) -> None:
    try:
        _fetch_file(uri, champion, MANIFEST, target)
        for name in release_files(target)[1:]:
            _fetch_file(uri, champion, name, target)
    except (HTTPException, OSError) as error:
        raise RegistryError(
            f"{uri}: the files of release {champion.release_id} cannot be fetched "
            f"({_cause(error)}); try `presage models show {champion.release_id} --download DIR`"
        ) from error


def _fetch_signature(uri: str, champion: Champion, target: Path) -> None:
    """Fetch the signature of a release, if it has one."""
    try:
        _fetch_file(uri, champion, SIGNATURE, target)
    except (FileNotFoundError, urllib.error.HTTPError):
        return  # MLflow replies 404 or 500, depending on version and store
    except (HTTPException, OSError) as error:
        raise RegistryError(
            f"{uri}: the signature of release {champion.release_id} cannot be fetched "
            f"({_cause(error)}); check that the registry is up"
        ) from error


def _fetch_file(uri: str, champion: Champion, name: str, target: Path) -> None:
    fetch_artifact(uri, champion.run_id, f"{FOLDER}/{name}", target / name)


def _cause(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
