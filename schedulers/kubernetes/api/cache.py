"""A cluster's nodes, pods and pod groups, as its API server tells of them.

A thread a kind lists, watches from there on, goes on where a watch ended, and lists anew where the
server has forgotten that version.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from kubernetes.client import ApiClient, ApiException

from presage.errors import without_frames
from presage.schedulers.kubernetes.api.api_reader import ApiReader
from presage.schedulers.kubernetes.api.known_objects import KnownObjects
from presage.schedulers.kubernetes.api.list_watch import Resource, list_all, watch
from presage.schedulers.kubernetes.api.refusals import explained, outdates, passes, said
from presage.schedulers.kubernetes.kubernetes_names import (
    POD_GROUP_GROUP,
    POD_GROUP_PLURAL,
    POD_GROUP_VERSION,
)
from presage.schedulers.kubernetes.snapshot import Json, Snapshot
from presage.serving.server.log import log

Kind = Literal["Node", "Pod", "PodGroup"]
_RESOURCES: Mapping[Kind, Resource] = {
    "Node": Resource("Node", "", "v1", "nodes"),
    "Pod": Resource("Pod", "", "v1", "pods"),
    "PodGroup": Resource("PodGroup", POD_GROUP_GROUP, POD_GROUP_VERSION, POD_GROUP_PLURAL),
}
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 30.0
_SHORT_S = 1.0  # a server that ends a watch sooner is not asked again at once
_STOP_S = 1.0


def _name(known: Json) -> str:
    return str(known["metadata"]["name"])


def _namespace_and_name(known: Json) -> tuple[str, str]:
    return str(known["metadata"]["namespace"]), _name(known)


@dataclass
class _Feed:
    """Where one kind's thread is."""

    resource: Resource
    known: KnownObjects[Any]
    listed: bool = False  # and the watch can go on from known.version
    touched_s: float | None = None  # when the server last answered; None before the first watch
    failures: int = 0  # since a watch last told anything, or lasted
    error: Exception | None = None  # the last one


class Cache:
    """Everything that is known of a cluster, while ``with`` lasts.

    Parameters
    ----------
    api : kubernetes.client.ApiClient
        Whose address and rights are used; its connections are not.
    sync_s : float
        How long to wait for a server that cannot be reached, or has too much to do, at first.
    watch_s : float
        How long a watch lasts, give or take a quarter, until the server is asked again, which costs
        it little. A connection that died without a word is found out ``LATE_S`` after that.

    Raises
    ------
    ClusterError
        On entry: the API server cannot be reached, does not allow or does not know what is asked.

    Examples
    --------
    >>> with Cache(kubernetes.config.new_client_from_config()) as cache:
    ...     seen = cache.snapshot()
    ...     cache.wait(seen.version, timeout_s=10)
    """

    def __init__(self, api: ApiClient, *, sync_s: float = 30.0, watch_s: float = 30.0) -> None:
        self._reader = ApiReader(api)
        self._sync_s, self._watch_s = sync_s, watch_s
        self._nodes: KnownObjects[str] = KnownObjects(_name)
        self._pods: KnownObjects[tuple[str, str]] = KnownObjects(_namespace_and_name)
        self._groups: KnownObjects[tuple[str, str]] = KnownObjects(_namespace_and_name)
        known: dict[Kind, KnownObjects[Any]] = {
            "Node": self._nodes,
            "Pod": self._pods,
            "PodGroup": self._groups,
        }
        self._feeds = {kind: _Feed(_RESOURCES[kind], known[kind]) for kind in _RESOURCES}
        self._version = 0
        self._changed = threading.Condition()  # its lock is over all of the above
        self._stopping = threading.Event()
        # Daemons only for the one thing that cannot be interrupted, connecting: see ApiReader.stop.
        self._threads = [
            threading.Thread(target=self._follow, args=(feed,), name=f"watch {kind}", daemon=True)
            for kind, feed in self._feeds.items()
        ]

    def __enter__(self) -> Self:
        """Returns once every kind was listed and is watched."""
        for thread in self._threads:
            thread.start()
        try:
            with self._changed:
                self._changed.wait_for(self._entered, self._sync_s)
                self._check_entered()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    def snapshot(self) -> Snapshot:
        """All that is known now; it costs a copy of what changed since the last one."""
        with self._changed:
            return Snapshot(
                self._version, self._nodes.shared(), self._pods.shared(), self._groups.shared()
            )

    def put(self, kind: Kind, written: Json) -> None:
        """Take the server's answer to an own write at once, if the watch has not passed it yet.

        Not that to a deletion, unless it says ``deletionTimestamp``: the watch tells of the end.
        """
        feed = self._feeds[kind]
        self._take(partial(feed.known.put, feed.resource.lean(written)))

    def wait(self, version: int, timeout_s: float) -> bool:
        """Until there is something newer than ``version``; False if there is not."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._version > version or self._stopping.is_set(), timeout_s
            )
            return self._version > version

    def lag_s(self) -> dict[Kind, float]:
        """Seconds since the server last answered or told anything; below ``watch_s`` * 1.25 + 1.

        Of a kind that is not watched yet it is infinite.
        """
        with self._changed:
            now_s = time.monotonic()
            return {
                kind: float("inf") if feed.touched_s is None else now_s - feed.touched_s
                for kind, feed in self._feeds.items()
            }

    def _entered(self) -> bool:
        """Whether there is nothing to wait for any more, for better or worse."""
        feeds = self._feeds.values()
        return all(feed.touched_s is not None for feed in feeds) or any(
            feed.touched_s is None and feed.error is not None and not passes(feed.error)
            for feed in feeds
        )

    def _check_entered(self) -> None:
        """Raise what keeps a kind from being known: what does not pass before what might."""
        missing = [feed for feed in self._feeds.values() if feed.touched_s is None]
        for feed in sorted(missing, key=lambda feed: feed.error is None or passes(feed.error)):
            error = feed.error or TimeoutError(f"no answer in {self._sync_s:g} s")
            raise explained(error, self._reader.host, feed.resource) from feed.error

    def _stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        self._reader.stop()
        ends_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))

    def _follow(self, feed: _Feed) -> None:
        """What a kind's thread does: nothing but the end of the cache ends it."""
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                if not feed.listed:
                    self._list(feed)
                self._watch(feed)
                if time.monotonic() - began_s >= _SHORT_S:
                    continue
                wait_s = _wait_s(feed.failures, None)
            except Exception as error:
                if self._stopping.is_set():
                    return
                wait_s = _wait_s(feed.failures, error)
                self._failed(feed, error, wait_s)
            feed.failures += 1
            self._stopping.wait(wait_s)

    def _list(self, feed: _Feed) -> None:
        """Apart from the watch: while that lasts, nobody must hold on to what was listed."""
        items, version = list_all(self._reader, feed.resource)
        self._take(partial(feed.known.replace, items, version))
        feed.listed = True

    def _watch(self, feed: _Feed) -> None:
        """Until the server ends it."""
        for_s = self._watch_s * random.uniform(0.75, 1.25)  # noqa: S311 -- not all at the same time
        events = watch(self._reader, feed.resource, feed.known.version, for_s=for_s)
        opened_s = time.monotonic()
        self._touch(feed)
        try:
            for event, told in events:
                self._take(partial(feed.known.tell, event, told))
                feed.failures = 0
                self._touch(feed)
        finally:
            if time.monotonic() - opened_s >= _SHORT_S:
                feed.failures = 0
        self._touch(feed)

    def _failed(self, feed: _Feed, error: Exception, wait_s: float) -> None:
        if outdates(error):
            feed.listed = False
        refused = isinstance(error, ApiException) and not passes(error)
        told = explained(error, self._reader.host, feed.resource) if refused else said(error)
        log(
            logging.WARNING,
            "watch failed" if feed.listed else "list or watch failed: listing anew",
            traceback=not refused and not passes(error),
            kind=feed.resource.kind,
            error=str(told),
            retry_after_s=round(wait_s, 3),
        )
        with self._changed:
            feed.error = without_frames(error)
            self._changed.notify_all()

    def _take(self, change: Callable[[], bool]) -> None:
        """Make a change, which returns whether it was one."""
        with self._changed:
            if change():
                self._version += 1
                self._changed.notify_all()

    def _touch(self, feed: _Feed) -> None:
        with self._changed:
            first = feed.touched_s is None
            feed.touched_s = time.monotonic()
            if first:
                self._changed.notify_all()


def _wait_s(failures: int, error: Exception | None) -> float:
    """Twice as long after every failure, never quite the same; no less than the server asks."""
    most_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures, 20))
    headers = error.headers if isinstance(error, ApiException) else None
    asked = str((headers or {}).get("Retry-After", ""))
    asked_s = min(_LONGEST_WAIT_S, int(asked)) if asked.isdecimal() else 0.0
    return max(asked_s, most_s * random.uniform(0.5, 1.0))  # noqa: S311
