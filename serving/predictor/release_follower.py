"""Hot reload: follows a release folder or the champion of a registry."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from presage.errors import RegistryError, ReleaseError
from presage.models.registry.champion import fetch_champion, find_champion
from presage.models.release.release import MANIFEST, SIGNATURE, Release, load_release
from presage.serving.predictor.served_release import Served
from presage.serving.server.log import log
from presage.serving.server_options import POLL_S

if TYPE_CHECKING:
    from presage.models.release.signature import TrustedKeys

_LONGEST_WAIT_S = 60.0
_TRIES = 3  # attempts to load a folder that is being replaced


class Source(Protocol):
    """Source of releases."""

    def mark(self) -> str:
        """Return a text that identifies the current release; must be fast.

        Raises
        ------
        RegistryError
            The registry is unavailable.
        """
        ...

    def folder(self) -> Path | Release:
        """Return the local folder of the current release, or the release loaded from it.

        Raises
        ------
        RegistryError, ReleaseError
            The release is unavailable or invalid.
        """
        ...


class FolderSource:
    """Source of releases in one folder, which may be replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> str:
        """Return inodes, sizes and times of manifest and signature; "" without a manifest."""
        manifest = _stamp(self._path / MANIFEST)
        return f"{manifest} {_stamp(self._path / SIGNATURE)}".rstrip() if manifest else ""

    def folder(self) -> Path:
        """Return the folder."""
        return self._path


class RegistrySource:
    """Source of a registry's champion, copied to a cache; with its signature if ``signed``."""

    def __init__(self, uri: str, cache: Path | None = None, *, signed: bool = False) -> None:
        self._uri, self._signed = uri, signed
        self._cache = cache or default_cache()

    def mark(self) -> str:
        """Return the release id of the champion."""
        champion = find_champion(self._uri)
        if champion is None:
            raise RegistryError(
                f"{self._uri}: no champion; promote a release with `presage models promote`"
            )
        return champion.release_id

    def folder(self) -> Path:
        """Return the champion's folder in the cache."""
        champion = find_champion(self._uri)
        if champion is None:
            raise RegistryError(f"{self._uri}: the champion was removed; promote a release")
        return fetch_champion(self._uri, champion, self._cache, signed=self._signed)


class CheckoutSource:
    """Source of a registry's champion, or of a bundled release until there is a champion."""

    def __init__(self, uri: str, before: Path, *, signed: bool = False) -> None:
        self._champion = RegistrySource(uri, signed=signed)
        self._before = FolderSource(before)
        self._source: FolderSource | RegistrySource = self._before

    def mark(self) -> str:
        """Return the mark of the champion or of the bundled release."""
        try:
            mark = self._champion.mark()
        except RegistryError:
            if self._source is self._champion:
                raise  # there was a champion: do not fall back while it is unavailable
            return self._before.mark()
        self._source = self._champion
        return mark

    def folder(self) -> Path:
        """Return the folder of the last marked release."""
        return self._source.folder()


class TrustedSource:
    """Source that accepts only releases of another source that a trusted key signed."""

    def __init__(self, source: Source, keys: TrustedKeys) -> None:
        self._source, self._keys = source, keys

    def mark(self) -> str:
        """Return the other source's mark."""
        return self._source.mark()

    def folder(self) -> Release:
        """Return the release, loaded and with its signature checked.

        Raises
        ------
        RegistryError, ReleaseError
            As raised by the other source; or the release is unsigned, altered, or signed by
            another key.
        """
        found = self._source.folder()
        release = found if isinstance(found, Release) else load_release(found)
        key = self._keys.check(release)
        log(logging.INFO, "signature checked", release_id=release.release_id, key_id=key)
        return release


def _stamp(path: Path) -> str:
    """Return a file's inode, size and modification time; "" if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def default_cache() -> Path:
    """Return the cache folder for champions below the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/releases"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Mark of a rejected release and the time of the next attempt."""

    mark: str
    wait_s: float
    retry_at_s: float  # by time.monotonic()


class ReleaseFollower:
    """Poller that serves the current release of a source and keeps the old one on errors."""

    def __init__(self, served: Served, source: Source, *, poll_s: float = POLL_S) -> None:
        self._served, self._source, self._poll_s = served, source, poll_s
        self._loaded_mark: str | None = None  # mark of the last loaded release
        self._refusal: _Refusal | None = None  # of the current release, if it was rejected
        self._unavailable_reason = ""
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Serve the current release of the source unless it is served already.

        Raises
        ------
        RegistryError, ReleaseError
            The release is unavailable or was rejected; the previous one is still served.
        """
        await self._check(at_once=True)

    async def run(self) -> None:
        """Poll every ``poll_s``; retry a rejected release with exponential backoff."""
        while True:
            # Jitter, so that the replicas of a service do not poll at the same time.
            await asyncio.sleep(self._poll_s * random.uniform(0.9, 1.1))  # noqa: S311
            try:
                await self._check(at_once=False)
                self._log_available()
            except RegistryError as error:
                self._log_unavailable(str(error))
            except ReleaseError:
                pass  # rejected and logged
            except Exception:
                log(logging.ERROR, "defect", traceback=True, method="follow")

    async def _check(self, *, at_once: bool) -> None:
        async with self._lock:
            await asyncio.to_thread(self._load, at_once)

    def _load(self, at_once: bool) -> None:
        for _ in range(_TRIES):
            mark = self._source.mark()
            if self._loaded_mark and not mark:
                return
            if mark == self._loaded_mark:  # possibly again, after another one was rejected
                self._refusal = self._served.refused = None
                return
            if not at_once and self._is_early(mark):
                return
            try:
                self._served.offer(self._source.folder())
            except ReleaseError as error:
                if self._source.mark() != mark:
                    continue  # replaced during the read
                if self._served.is_ready:  # otherwise nothing is served, and the error is raised
                    self._refuse(mark, error)
                raise
            self._loaded_mark, self._refusal = mark, None
            return

    def _is_early(self, mark: str) -> bool:
        """Return whether the release was rejected too recently for another attempt."""
        refusal = self._refusal
        return (
            refusal is not None and refusal.mark == mark and time.monotonic() < refusal.retry_at_s
        )

    def _refuse(self, mark: str, error: ReleaseError) -> None:
        before = self._refusal
        again = before is not None and before.mark == mark
        self._served.refuse(error, again=again)
        wait_s = 2 * (before.wait_s if before and again else self._poll_s)
        wait_s = min(wait_s, max(_LONGEST_WAIT_S, self._poll_s))
        self._refusal = _Refusal(mark, wait_s, time.monotonic() + wait_s)

    def _log_unavailable(self, reason: str) -> None:
        """Log an unavailable registry once per reason."""
        if reason != self._unavailable_reason:
            log(logging.WARNING, "registry away, serving on", reason=reason)
        self._unavailable_reason = reason

    def _log_available(self) -> None:
        if self._unavailable_reason:
            log(logging.INFO, "registry back")
        self._unavailable_reason = ""
