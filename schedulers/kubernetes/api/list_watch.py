"""Lists and watches of one kind of object, in the JSON of the API server.

Not by ``kubernetes.watch.Watch`` (36.0.3): it writes every object out and parses it a second time;
told not to, it cannot read an ERROR event, nor knows where to go on; and its ``stop`` does not end
a request that nobody answers.

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
PAGE_OBJECTS = 500
READ_S = 30.0
LATE_S = 5.0  # a watch that is to end and says nothing for so long is dead


class Resource(NamedTuple):
    """What to ask for, in all namespaces."""

    kind: str
    group: str  # empty for the core
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """Group and version as an object states them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """Of the collection."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/{self.plural}"

    def lean(self, read: Json) -> Json:
        """An object as it is kept.

        Items of a list do not say what they are, and most of what an object weighs are its
        managedFields, of use to servers alone.
        """
        metadata = {k: v for k, v in read["metadata"].items() if k != "managedFields"}
        return {**read, "kind": self.kind, "apiVersion": self.api_version, "metadata": metadata}


def list_all(reader: ApiReader, resource: Resource) -> tuple[list[Json], str]:
    """All objects of one moment, and its resourceVersion.

    Raises
    ------
    kubernetes.client.ApiException, urllib3.exceptions.HTTPError
        As of :meth:`ApiReader.get`.
    ValueError, KeyError
        The answer is not that of an API server.
    """
    try:
        return _list(reader, resource, {"limit": str(PAGE_OBJECTS)})
    except ApiException as error:
        if error.status != EXPIRED:
            raise
        # Too slow for the server's memory; of one page no part can expire.
        return _list(reader, resource, {})


def _list(reader: ApiReader, resource: Resource, query: dict[str, str]) -> tuple[list[Json], str]:
    items: list[Json] = []
    while True:
        page = json.loads(reader.get(resource.path, query, read_s=READ_S).data)
        items += [resource.lean(item) for item in page["items"]]
        metadata = page["metadata"]
        if not metadata.get("continue"):
            return items, str(metadata["resourceVersion"])
        query = {**query, "continue": metadata["continue"]}


def watch(
    reader: ApiReader, resource: Resource, version: str, *, for_s: float
) -> Iterator[tuple[str, Json]]:
    """Events since a version, until the server ends the watch, about ``for_s`` from now.

    It returns once the server has accepted the watch. The iterator must be begun.

    Raises
    ------
    kubernetes.client.ApiException
        Refused, now or later; with status 410, the server has forgotten that version.
    urllib3.exceptions.HTTPError, ValueError
        The connection broke, perhaps inside of an event.
    """
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(max(1, round(for_s))),
    }
    answer = reader.get(resource.path, query, read_s=for_s + LATE_S)
    return _events(answer, resource)


def _events(answer: BaseHTTPResponse, resource: Resource) -> Iterator[tuple[str, Json]]:
    try:
        for line in answer:
            event = json.loads(line, object_pairs_hook=_interned)
            told = event["object"]
            if event["type"] == "ERROR":
                said = f"{told.get('reason')}: {told.get('message')}"
                raise ApiException(status=told.get("code", 500), reason=said)
            yield event["type"], resource.lean(told)
    finally:
        answer.close()


def _interned(pairs: list[tuple[str, Any]]) -> Json:
    """Objects of a page share their keys; those of events would have, each, their own."""
    return {sys.intern(key): value for key, value in pairs}
