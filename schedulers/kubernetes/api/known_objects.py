"""Objects of one kind, each as new as anybody told.

References
----------
KEP-5504: versions of one kind of resource compare as decimal integers (Kubernetes 1.35). Of a
server whose versions are none, the watch alone is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from presage.schedulers.kubernetes.snapshot import Json

Key = TypeVar("Key")


def compared(version: str, other: str) -> int | None:
    """Negative, 0 or positive: older, the same, newer; None where they cannot be compared."""
    if not (version.isdecimal() and other.isdecimal()):
        return None
    return int(version) - int(other)


def _version(known: Json) -> str:
    return str(known["metadata"]["resourceVersion"])


def _newer(version: str, than: str) -> bool:
    difference = compared(version, than)
    return difference is not None and difference > 0


class KnownObjects(Generic[Key]):
    """A list, what a watch tells of since, and answers to one's own writes, which may be sooner.

    Parameters
    ----------
    key : callable
        Key of an object.

    Attributes
    ----------
    version : str
        The server has told everything up to this resourceVersion; empty before the first list.
    """

    def __init__(self, key: Callable[[Json], Key]) -> None:
        self.version = ""
        self._key = key
        self._objects: dict[Key, Json] = {}
        self._shared = False

    def shared(self) -> Mapping[Key, Json]:
        """All there are; what is returned stays as it is."""
        self._shared = True
        return self._objects

    def replace(self, items: Iterable[Json], version: str) -> bool:
        """Take a whole list of the moment ``version``; True if it changed anything.

        Newer answers to own writes are kept: the list cannot know of them.
        """
        listed = {self._key(item): item for item in items}
        # A list is never older than what was told, unless the server's store is another one,
        # restored from a backup: then nothing from before is worth anything.
        if not _newer(self.version, version):
            since = {k: o for k, o in self._objects.items() if _newer(_version(o), version)}
            listed.update(since)
        changed = self._objects.keys() != listed.keys() or any(
            _version(self._objects[key]) != _version(item) for key, item in listed.items()
        )
        self.version = version
        self._objects, self._shared = listed, False
        return changed

    def tell(self, event: str, told: Json) -> bool:
        """Take an event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK; True if it was news."""
        version = _version(told)
        if not _newer(self.version, version):
            self.version = version
        if event == "BOOKMARK":
            return False
        key = self._key(told)
        known = self._objects.get(key)
        if event == "DELETED":
            # What is newer than the deletion is another object of that name, one's own write.
            if known is None or _newer(_version(known), version):
                return False
            del self._own()[key]
            return True
        difference = 1 if known is None else compared(version, _version(known))
        if difference is not None and difference <= 0:
            return False
        self._own()[key] = told
        return True

    def put(self, written: Json) -> bool:
        """Take the answer to an own write; True if it was news.

        What the watch has passed is not: it told of that version, or of a later one, or of the
        object's end.
        """
        key, version = self._key(written), _version(written)
        known = self._objects.get(key)
        if not _newer(version, self.version):
            return False
        if known is not None and not _newer(version, _version(known)):
            return False
        self._own()[key] = written
        return True

    def _own(self) -> dict[Key, Json]:
        """The objects, to be changed: a copy once somebody shares them."""
        if self._shared:
            self._objects, self._shared = self._objects.copy(), False
        return self._objects
