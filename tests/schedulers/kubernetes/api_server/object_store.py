"""The objects, their versions, and who watches them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from queue import SimpleQueue
from typing import NamedTuple

from tests.schedulers.kubernetes.api_server.resources import Resource
from tests.schedulers.kubernetes.api_server.selectors import Matches
from tests.schedulers.kubernetes.api_server.statuses import ApiError, Json


class Key(NamedTuple):
    group: str
    plural: str
    namespace: str
    name: str


class Change(NamedTuple):
    """One write; ``before`` is None for what was created, ``after`` for what was deleted."""

    version: int
    key: Key
    before: Json | None
    after: Json | None


class Signal(Enum):
    """How a watch is ended."""

    DROP = "drop"  # as if the network broke
    CLOSE = "close"


class Bookmark(NamedTuple):
    """Every change up to this version has been told."""

    version: int


class Watch:
    """What one watcher is still to be sent: everything written after it subscribed, in order."""

    def __init__(self, resource: Resource, namespace: str, matches: Matches) -> None:
        self.queue: SimpleQueue[Change | Bookmark | Signal] = SimpleQueue()
        self._of = (resource.group, resource.plural)
        self._namespace = namespace
        self._matches = matches

    def event(self, change: Change) -> Json | None:
        """As a watcher with a selector sees it, or None where it does not concern it.

        What no longer matches is gone for this watcher, as it was when it last matched.
        """
        if (change.key.group, change.key.plural) != self._of:
            return None
        if self._namespace not in ("", change.key.namespace):
            return None
        was = change.before is not None and self._matches(change.before)
        if change.after is not None and self._matches(change.after):
            return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
        if not was:
            return None
        assert change.before is not None
        version = {"resourceVersion": str(change.version)}
        gone = {**change.before, "metadata": {**change.before["metadata"], **version}}
        return {"type": "DELETED", "object": gone}


class ObjectStore:
    """Objects by key. One counter gives every write its version.

    Objects are replaced, never altered: what was read stays as it was read.
    """

    def __init__(self, history_changes: int) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self._objects: dict[Key, Json] = {}
        self._history: deque[Change] = deque()
        self._history_changes = history_changes
        self._forgotten_version = 0  # of the last change that the history no longer holds
        self._watches: set[Watch] = set()

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self._objects.get(Key(resource.group, resource.plural, namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> list[Json]:
        """In the order of a list: by namespace and name; of every namespace where none is given."""
        with self.lock:
            return [
                self._objects[key]
                for key in sorted(self._objects)
                if (key.group, key.plural) == (resource.group, resource.plural)
                and namespace in ("", key.namespace)
            ]

    def keys(self) -> list[Key]:
        return list(self._objects)

    def put(self, key: Key, after: Json | None) -> Json | None:
        """Write, or delete with None; what was written, with its version."""
        with self.lock:
            self.version += 1
            before = self._objects.pop(key, None)
            if after is not None:
                metadata = {**after["metadata"], "resourceVersion": str(self.version)}
                after = self._objects[key] = {**after, "metadata": metadata}
            change = Change(self.version, key, before, after)
            self._history.append(change)
            while len(self._history) > self._history_changes:
                self._forgotten_version = self._history.popleft().version
            for watch in self._watches:
                watch.queue.put(change)
            return after

    def compact(self) -> None:
        """Forget the history: who watches goes on, who comes back with an old version cannot."""
        with self.lock:
            self._history.clear()
            self._forgotten_version = self.version

    @contextmanager
    def watching(
        self, resource: Resource, namespace: str, matches: Matches, since: int | None
    ) -> Iterator[Watch]:
        """Subscribed while the block runs; without a version, what there is comes first."""
        watch = Watch(resource, namespace, matches)
        with self.lock:
            if since is None:
                for found in self.all(resource, namespace):
                    metadata = found["metadata"]
                    key = Key(
                        resource.group,
                        resource.plural,
                        metadata.get("namespace", ""),
                        metadata["name"],
                    )
                    watch.queue.put(Change(int(metadata["resourceVersion"]), key, None, found))
            elif since < self._forgotten_version:
                # cacher.go puts it into the stream, as an event of type ERROR.
                raise ApiError(
                    410, f"too old resource version: {since} ({self._forgotten_version})"
                )
            else:
                for change in self._history:
                    if change.version > since:
                        watch.queue.put(change)
            self._watches.add(watch)
        try:
            yield watch
        finally:
            with self.lock:
                self._watches.discard(watch)

    @property
    def watches(self) -> int:
        return len(self._watches)

    def signal(self, signal: Signal) -> None:
        with self.lock:
            for watch in self._watches:
                watch.queue.put(signal)

    def bookmark(self) -> None:
        with self.lock:
            for watch in self._watches:
                watch.queue.put(Bookmark(self.version))

    def all_told(self, watch: Watch) -> Bookmark | None:
        """The newest version, if this watch has nothing left to be told."""
        with self.lock:
            return Bookmark(self.version) if watch.queue.empty() else None
