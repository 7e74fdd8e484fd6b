"""Store of objects, with versions, history and watches."""

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
    """One write; ``before`` is None for a creation, ``after`` for a deletion."""

    version: int
    key: Key
    before: Json | None
    after: Json | None


class Signal(Enum):
    """Way to end a watch."""

    DROP = "drop"  # as if the network broke
    CLOSE = "close"


class Bookmark(NamedTuple):
    """Version up to which all changes have been sent."""

    version: int


class Watch:
    """Queue of changes for one watch, in order."""

    def __init__(self, resource: Resource, namespace: str, matches: Matches) -> None:
        self.queue: SimpleQueue[Change | Bookmark | Signal] = SimpleQueue()
        self._kind = (resource.group, resource.plural)
        self._namespace = namespace
        self._matches = matches

    def event(self, change: Change) -> Json | None:
        """Return the event for this watch's selector, or None if it does not match.

        An object that no longer matches is reported as deleted, in its last matching state.
        """
        if (change.key.group, change.key.plural) != self._kind:
            return None
        if self._namespace not in ("", change.key.namespace):
            return None
        matched = change.before is not None and self._matches(change.before)
        if change.after is not None and self._matches(change.after):
            return {"type": "MODIFIED" if matched else "ADDED", "object": change.after}
        if not matched:
            return None
        assert change.before is not None
        version = {"resourceVersion": str(change.version)}
        deleted = {**change.before, "metadata": {**change.before["metadata"], **version}}
        return {"type": "DELETED", "object": deleted}


class ObjectStore:
    """Objects by key; one counter gives each write its version.

    Objects are replaced and never mutated.
    """

    def __init__(self, history_changes: int) -> None:
        self.lock = threading.RLock()
        self.version = 1
        self._objects: dict[Key, Json] = {}
        self._history: deque[Change] = deque()
        self._history_changes = history_changes
        self._compacted_version = 0  # of the newest change that is no longer in the history
        self._watches: set[Watch] = set()

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self._objects.get(Key(resource.group, resource.plural, namespace, name))

    def all(self, resource: Resource, namespace: str = "") -> list[Json]:
        """Return objects by namespace and name; all namespaces by default."""
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
        """Write an object, or delete it with None; return it with its version."""
        with self.lock:
            self.version += 1
            before = self._objects.pop(key, None)
            if after is not None:
                metadata = {**after["metadata"], "resourceVersion": str(self.version)}
                after = self._objects[key] = {**after, "metadata": metadata}
            change = Change(self.version, key, before, after)
            self._history.append(change)
            while len(self._history) > self._history_changes:
                self._compacted_version = self._history.popleft().version
            for watch in self._watches:
                watch.queue.put(change)
            return after

    def compact(self) -> None:
        """Drop the history: open watches continue, older versions cannot be resumed."""
        with self.lock:
            self._history.clear()
            self._compacted_version = self.version

    @contextmanager
    def watching(
        self, resource: Resource, namespace: str, matches: Matches, since: int | None
    ) -> Iterator[Watch]:
        """Open a watch; without a version it starts with all existing objects."""
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
            elif since < self._compacted_version:
                # cacher.go sends this as an event of type ERROR.
                raise ApiError(
                    410, f"too old resource version: {since} ({self._compacted_version})"
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

    def final_bookmark(self, watch: Watch) -> Bookmark | None:
        """Return the newest version if all changes have been sent to this watch."""
        with self.lock:
            return Bookmark(self.version) if watch.queue.empty() else None
