"""Following what is to be served: a folder, or the champion of a registry."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path
from typing import Protocol

from presage.features.errors import RegistryError, ReleaseError
from presage.models.champion import find_champion, lay_down
from presage.models.release import MANIFEST
from presage.serving.log import log
from presage.serving.options import POLL_S
from presage.serving.served import Served

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

    def folder(self) -> Path:
        """Its folder, on this machine.

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
        """Of the manifest's inode, size and time; "" where there is none."""
        try:
            found = (self._path / MANIFEST).stat()
        except OSError:
            return ""
        return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"

    def folder(self) -> Path:
        """The folder itself."""
        return self._path


class RegistrySource:
    """The champion of a registry, laid down in a cache."""

    def __init__(self, uri: str, cache: Path | None = None) -> None:
        self._uri = uri
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
        return lay_down(self._uri, champion, self._cache)


class CheckoutSource:
    """The champion of a checkout's registry; before there is one, what came with the checkout."""

    def __init__(self, uri: str, before: Path) -> None:
        self._champion = RegistrySource(uri)
        self._before = FolderSource(before)
        self._source: Source = self._before

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


def default_cache() -> Path:
    """Where champions are laid down: releases/ of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/releases"


class Follower:
    """Serves what a source says, and keeps to what is served when it says nothing sensible."""

    def __init__(self, served: Served, source: Source, *, poll_s: float = POLL_S) -> None:
        self._served, self._source, self._poll_s = served, source, poll_s
        self._seen: str | None = None  # the mark of what was loaded last
        self._away = ""
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> None:
        """Serve what is to be served now, unless it is already.

        Raises
        ------
        RegistryError, ReleaseError
            It cannot be had, or was refused; what was served still is.
        """
        async with self._one_at_a_time:
            await asyncio.to_thread(self._load)

    async def run(self) -> None:
        """Look every ``poll_s``, less often for a release that was refused."""
        wait_s = self._poll_s
        while True:
            # Not all replicas of a service at the same instant.
            await asyncio.sleep(wait_s * random.uniform(0.9, 1.1))  # noqa: S311
            try:
                await self.load()
                self._say_back()
                wait_s = self._poll_s
            except RegistryError as error:
                self._say_away(str(error))
                wait_s = self._poll_s
            except ReleaseError:  # refused, and said so
                wait_s = min(2 * wait_s, max(_LONGEST_WAIT_S, self._poll_s))
            except Exception:
                log(logging.ERROR, "defect", traceback=True, method="follow")

    def _load(self) -> None:
        for _ in range(_TRIES):
            mark = self._source.mark()
            if mark == self._seen or (self._seen and not mark):
                return
            try:
                self._served.offer(self._source.folder())
            except ReleaseError as error:
                if self._source.mark() != mark:
                    continue  # replaced while it was read
                if self._served.is_ready:  # else nothing is served, and the caller hears of it
                    self._served.refuse(error)
                raise
            self._seen = mark
            return

    def _say_away(self, reason: str) -> None:
        """Once, however long it lasts."""
        if reason != self._away:
            log(logging.WARNING, "registry away, serving on", reason=reason)
        self._away = reason

    def _say_back(self) -> None:
        if self._away:
            log(logging.INFO, "registry back")
        self._away = ""
