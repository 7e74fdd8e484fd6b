"""Store of the newest known version of each object of one kind.

References
----------
KEP-5504: versions of one kind of resource compare as decimal integers (Kubernetes 1.35). If a
server's versions are not decimal integers, only the watch changes the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from presage.schedulers.kubernetes.snapshot import Json

Key = TypeVar("Key")


def compare_versions(version: str, other: str) -> int | None:
    """Return a negative number, 0 or a positive number: older, equal, newer.

    None if the versions cannot be compared.
    """
    if not (version.isdecimal() and other.isdecimal()):
        return None
    return int(version) - int(other)


def _resource_version(obj: Json) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _is_newer(version: str, other: str) -> bool:
    difference = compare_versions(version, other)
    return difference is not None and difference > 0


class ObjectStore(Generic[Key]):
    """Objects from a list, from later watch events, and from responses to this process's writes.

    A response to a write may arrive before its watch event.

    Parameters
    ----------
    key : callable
        Returns the key of an object.

    Attributes
    ----------
    version : str
        The resourceVersion up to which the server has sent all events; empty before the first
        list.
    """

    def __init__(self, key: Callable[[Json], Key]) -> None:
        self.version = ""
        self._key = key
        self._objects: dict[Key, Json] = {}
        self._is_shared = False

    def snapshot(self) -> Mapping[Key, Json]:
        """Return all objects by key; the mapping does not change later."""
        self._is_shared = True
        return self._objects

    def replace(self, items: Iterable[Json], version: str) -> bool:
        """Replace all objects by a list made at ``version``; return whether anything changed.

        Newer responses to this process's writes are kept, because the list does not include them.
        """
        listed = {self._key(item): item for item in items}
        # A list is never older than earlier events, unless the server's store was restored from a
        # backup: then every earlier object is invalid.
        if not _is_newer(self.version, version):
            newer = {
                k: o for k, o in self._objects.items() if _is_newer(_resource_version(o), version)
            }
            listed.update(newer)
        changed = self._objects.keys() != listed.keys() or any(
            _resource_version(self._objects[key]) != _resource_version(item)
            for key, item in listed.items()
        )
        self.version = version
        self._objects, self._is_shared = listed, False
        return changed

    def apply_event(self, event: str, obj: Json) -> bool:
        """Apply a watch event (ADDED, MODIFIED, DELETED, BOOKMARK); return whether it is new."""
        version = _resource_version(obj)
        if not _is_newer(self.version, version):
            self.version = version
        if event == "BOOKMARK":
            return False
        key = self._key(obj)
        known = self._objects.get(key)
        if event == "DELETED":
            # An object newer than the deletion is another one of the same name, from a write of
            # this process.
            if known is None or _is_newer(_resource_version(known), version):
                return False
            del self._writable()[key]
            return True
        difference = 1 if known is None else compare_versions(version, _resource_version(known))
        if difference is not None and difference <= 0:
            return False
        self._writable()[key] = obj
        return True

    def put(self, obj: Json) -> bool:
        """Store the response to a write of this process; return whether it is new.

        It is not new once the watch has passed its version: the watch has reported that version, a
        later one, or the deletion of the object.
        """
        key, version = self._key(obj), _resource_version(obj)
        known = self._objects.get(key)
        if not _is_newer(version, self.version):
            return False
        if known is not None and not _is_newer(version, _resource_version(known)):
            return False
        self._writable()[key] = obj
        return True

    def _writable(self) -> dict[Key, Json]:
        """Return the objects for changes: a copy if a snapshot shares them."""
        if self._is_shared:
            self._objects, self._is_shared = self._objects.copy(), False
        return self._objects
