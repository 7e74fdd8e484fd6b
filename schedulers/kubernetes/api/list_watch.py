"""Lists and watches of one kind of object, as JSON of the API server.

``kubernetes.watch.Watch`` (36.0.3) is not used: it serializes every object and parses it a second
time; without that it cannot read an ERROR event, nor track the version to resume from; and its
``stop`` does not end a request without a response.

References
----------
https://kubernetes.io/docs/reference/using-api/api-concepts/ (versions, watches, pages)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from kubernetes.client import ApiException
from urllib3.response import BaseHTTPResponse

from presage.schedulers.kubernetes.api.api_reader import ApiReader
from presage.schedulers.kubernetes.snapshot import Json

EXPIRED = 410
PAGE_SIZE = 500
READ_TIMEOUT_S = 30.0
WATCH_GRACE_S = 5.0  # a watch without an event for so long after its timeout is broken


class Resource(NamedTuple):
    """Resource type to list and watch, in all namespaces."""

    kind: str
    group: str  # empty for the core group
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """Group and version, as in ``apiVersion`` of an object."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """URL path of the collection."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/{self.plural}"

    def transform(self, obj: Json) -> Json:
        """Return an object as the cache stores it: with kind, without managedFields.

        Items of a list have no ``kind``; managedFields are most of an object's size, and only
        servers use them.
        """
        metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        return {**obj, "kind": self.kind, "apiVersion": self.api_version, "metadata": metadata}


def list_all(reader: ApiReader, resource: Resource) -> tuple[list[Json], str]:
    """Return all objects at one resourceVersion, and that version.

    Raises
    ------
    kubernetes.client.ApiException, urllib3.exceptions.HTTPError
        As in :meth:`ApiReader.get`.
    ValueError, KeyError
        The response is not from an API server.
    """
    try:
        return _list(reader, resource, {"limit": str(PAGE_SIZE)})
    except ApiException as error:
        if error.status != EXPIRED:
            raise
        # The server dropped the version between two pages; a single page cannot expire.
        return _list(reader, resource, {})


def _list(reader: ApiReader, resource: Resource, query: dict[str, str]) -> tuple[list[Json], str]:
    items: list[Json] = []
    while True:
        response = reader.get(resource.path, query, read_timeout_s=READ_TIMEOUT_S)
        page = json.loads(response.data)
        items += [resource.transform(item) for item in page["items"]]
        metadata = page["metadata"]
        if not metadata.get("continue"):
            return items, str(metadata["resourceVersion"])
        query = {**query, "continue": metadata["continue"]}


def watch(
    reader: ApiReader, resource: Resource, version: str, *, timeout_s: float
) -> Iterator[tuple[str, Json]]:
    """Watch the events since a version, until the server ends the watch after ``timeout_s``.

    Returns once the server has accepted the watch. The iterator must be started, to close the
    response.

    Raises
    ------
    kubernetes.client.ApiException
        The server rejected the watch, now or later; with status 410, it no longer has that version.
    urllib3.exceptions.HTTPError, ValueError
        The connection broke, perhaps within an event.
    """
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(max(1, round(timeout_s))),
    }
    response = reader.get(resource.path, query, read_timeout_s=timeout_s + WATCH_GRACE_S)
    return _events(response, resource)


def _events(response: BaseHTTPResponse, resource: Resource) -> Iterator[tuple[str, Json]]:
    try:
        for line in response:
            event = json.loads(line, object_pairs_hook=_intern_keys)
            obj = event["object"]
            if event["type"] == "ERROR":
                reason = f"{obj.get('reason')}: {obj.get('message')}"
                raise ApiException(status=obj.get("code", 500), reason=reason)
            yield event["type"], resource.transform(obj)
    finally:
        response.close()


def _intern_keys(pairs: list[tuple[str, Any]]) -> Json:
    """Return a dict with interned keys: objects of separate events would not share them."""
    return {sys.intern(key): value for key, value in pairs}
