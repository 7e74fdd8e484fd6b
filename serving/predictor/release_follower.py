"""Following what is to be served: a folder, or the champion of a registry."""

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
from presage.models.registry.champion import find_champion, lay_down
from presage.models.release.release import MANIFEST, SIGNATURE, Release, load_release
from presage.serving.predictor.served_release import Served
from presage.serving.server.log import log
from presage.serving.server_options import POLL_S

if TYPE_CHECKING:
    from presage.models.release.signature import TrustedKeys

_LONGEST_WAIT_S = 60.0
_TRIES = 3  # of a folder that is being replaced


class Source(Protocol):
    """Where releases come from."""

    def mark(self) -> str:
        """What is to be served now, by something that changes when it does; quick.

        Raises
        ------
        RegistryError
            Nobody can tell at the moment.
        """
        ...

    def folder(self) -> Path | Release:
        """Its folder, on this machine, or the release that was loaded from it.

        Raises
        ------
        RegistryError, ReleaseError
            It cannot be had at the moment, or what came is not it.
        """
        ...


class FolderSource:
    """A release folder, which may be replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> str:
        """Of the manifest's and the signature's inode, size and time; "" without a manifest."""
        manifest = _stamp(self._path / MANIFEST)
        return f"{manifest} {_stamp(self._path / SIGNATURE)}".rstrip() if manifest else ""

    def folder(self) -> Path:
        """The folder itself."""
        return self._path


class RegistrySource:
    """The champion of a registry, laid down in a cache; ``signed`` ones with their signature."""

    def __init__(self, uri: str, cache: Path | None = None, *, signed: bool = False) -> None:
        self._uri, self._signed = uri, signed
        self._cache = cache or default_cache()

    def mark(self) -> str:
        """Its release id."""
        champion = find_champion(self._uri)
        if champion is None:
            raise RegistryError(
                f"{self._uri}: no release is champion; promote one with `presage models promote`"
            )
        return champion.release_id

    def folder(self) -> Path:
        """The champion's folder in the cache."""
        champion = find_champion(self._uri)
        if champion is None:
            raise RegistryError(f"{self._uri}: the champion was taken away; promote a release")
        return lay_down(self._uri, champion, self._cache, signed=self._signed)


class CheckoutSource:
    """The champion of a checkout's registry; before there is one, what came with the checkout."""

    def __init__(self, uri: str, before: Path, *, signed: bool = False) -> None:
        self._champion = RegistrySource(uri, signed=signed)
        self._before = FolderSource(before)
        self._source: FolderSource | RegistrySource = self._before

    def mark(self) -> str:
        """Of whichever is to be served."""
        try:
            mark = self._champion.mark()
        except RegistryError:
            if self._source is self._champion:
                raise  # it was there: that it is away is no reason to go back
            return self._before.mark()
        self._source = self._champion
        return mark

    def folder(self) -> Path:
        """Of what was marked last."""
        return self._source.folder()


class TrustedSource:
    """Another source, of whose releases only those are served that a trusted key signed."""

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
            As of the other source; or the release is unsigned, altered, or signed by another key.
        """
        found = self._source.folder()
        release = found if isinstance(found, Release) else load_release(found)
        key = self._keys.check(release)
        log(logging.INFO, "signature checked", release_id=release.release_id, key_id=key)
        return release


def _stamp(path: Path) -> str:
    """Return a file's inode, size and time of change; "" where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def default_cache() -> Path:
    """Where champions are laid down: releases/ of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/releases"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A mark whose release was refused, and when it is worth another try."""

    mark: str
    wait_s: float
    again_at_s: float  # by time.monotonic()


class Follower:
    """Serves what a source says, and keeps to what is served when it says nothing sensible."""

    def __init__(self, served: Served, source: Source, *, poll_s: float = POLL_S) -> None:
        self._served, self._source, self._poll_s = served, source, poll_s
        self._seen: str | None = None  # the mark of what was loaded last
        self._refusal: _Refusal | None = None  # of what is to be served instead
        self._away = ""
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> None:
        """Serve what is to be served now, unless it is already.

        Raises
        ------
        RegistryError, ReleaseError
            It cannot be had, or was refused; what was served still is.
        """
        await self._look(at_once=True)

    async def run(self) -> None:
        """Look every ``poll_s``; a release that was refused is tried again less and less often."""
        while True:
            # Not all replicas of a service at the same instant.
            await asyncio.sleep(self._poll_s * random.uniform(0.9, 1.1))  # noqa: S311
            try:
                await self._look(at_once=False)
                self._say_back()
            except RegistryError as error:
                self._say_away(str(error))
            except ReleaseError:
                pass  # refused, and said so
            except Exception:
                log(logging.ERROR, "defect", traceback=True, method="follow")

    async def _look(self, *, at_once: bool) -> None:
        async with self._one_at_a_time:
            await asyncio.to_thread(self._load, at_once)

    def _load(self, at_once: bool) -> None:
        for _ in range(_TRIES):
            mark = self._source.mark()
            if self._seen and not mark:
                return
            if mark == self._seen:  # again, where another was refused in the meantime
                self._refusal = self._served.refused = None
                return
            if not at_once and self._is_early(mark):
                return
            try:
                self._served.offer(self._source.folder())
            except ReleaseError as error:
                if self._source.mark() != mark:
                    continue  # replaced while it was read
                if self._served.is_ready:  # else nothing is served, and the caller hears of it
                    self._refuse(mark, error)
                raise
            self._seen, self._refusal = mark, None
            return

    def _is_early(self, mark: str) -> bool:
        """Whether it was refused not long enough ago."""
        refusal = self._refusal
        return (
            refusal is not None and refusal.mark == mark and time.monotonic() < refusal.again_at_s
        )

    def _refuse(self, mark: str, error: ReleaseError) -> None:
        before = self._refusal
        again = before is not None and before.mark == mark
        self._served.refuse(error, again=again)
        wait_s = 2 * (before.wait_s if before and again else self._poll_s)
        wait_s = min(wait_s, max(_LONGEST_WAIT_S, self._poll_s))
        self._refusal = _Refusal(mark, wait_s, time.monotonic() + wait_s)

    def _say_away(self, reason: str) -> None:
        """Once, however long it lasts."""
        if reason != self._away:
            log(logging.WARNING, "registry away, serving on", reason=reason)
        self._away = reason

    def _say_back(self) -> None:
        if self._away:
            log(logging.INFO, "registry back")
        self._away = ""
