"""Cache of a cluster's nodes, pods and pod groups, kept up to date by list and watch.

One thread for each kind lists the objects, watches from that version, resumes where a watch ended,
and lists again when the server no longer has that version.
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
from presage.schedulers.kubernetes.api.api_errors import (
    describe_error,
    is_transient,
    make_cluster_error,
    needs_relist,
)
from presage.schedulers.kubernetes.api.api_reader import ApiReader
from presage.schedulers.kubernetes.api.list_watch import Resource, list_all, watch
from presage.schedulers.kubernetes.api.object_store import ObjectStore
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
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.1, 30.0
_SHORT_WATCH_S = 1.0  # a watch that ends sooner is followed by a backoff
_JOIN_TIMEOUT_S = 1.0


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _namespace_and_name(obj: Json) -> tuple[str, str]:
    return str(obj["metadata"]["namespace"]), _name(obj)


@dataclass
class _Informer:
    """List-and-watch state of one kind."""

    resource: Resource
    store: ObjectStore[Any]
    is_listed: bool = False  # the watch can resume from store.version
    responded_s: float | None = None  # time of the last response; None before the first watch
    failures: int = 0  # since the last event, or the last watch that was not short
    last_error: Exception | None = None


class Cache:
    """Cache of a cluster's objects, active inside ``with``.

    Parameters
    ----------
    api : kubernetes.client.ApiClient
        Source of address and credentials; its connections are not used.
    sync_timeout_s : float
        Maximum time to wait on entry for a server that is unreachable or overloaded.
    watch_timeout_s : float
        Duration of a watch, plus or minus a quarter, until it is renewed, which costs the server
        little. A broken connection is detected ``WATCH_GRACE_S`` after that.

    Raises
    ------
    ClusterError
        On entry: the API server cannot be reached, or rejects the request.

    Examples
    --------
    >>> with Cache(kubernetes.config.new_client_from_config()) as cache:
    ...     snapshot = cache.snapshot()
    ...     cache.wait(snapshot.version, timeout_s=10)
    """

    def __init__(
        self, api: ApiClient, *, sync_timeout_s: float = 30.0, watch_timeout_s: float = 30.0
    ) -> None:
        self._reader = ApiReader(api)
        self._sync_timeout_s, self._watch_timeout_s = sync_timeout_s, watch_timeout_s
        self._nodes: ObjectStore[str] = ObjectStore(_name)
        self._pods: ObjectStore[tuple[str, str]] = ObjectStore(_namespace_and_name)
        self._groups: ObjectStore[tuple[str, str]] = ObjectStore(_namespace_and_name)
        stores: dict[Kind, ObjectStore[Any]] = {
            "Node": self._nodes,
            "Pod": self._pods,
            "PodGroup": self._groups,
        }
        self._informers = {kind: _Informer(_RESOURCES[kind], stores[kind]) for kind in _RESOURCES}
        self._version = 0
        self._condition = threading.Condition()  # its lock guards all of the above
        self._stopping = threading.Event()
        # Daemon threads, because connecting cannot be interrupted: see ApiReader.stop.
        self._threads = [
            threading.Thread(
                target=self._list_and_watch, args=(informer,), name=f"watch {kind}", daemon=True
            )
            for kind, informer in self._informers.items()
        ]

    def __enter__(self) -> Self:
        """Start the threads, and return once every kind is listed and watched."""
        for thread in self._threads:
            thread.start()
        try:
            with self._condition:
                self._condition.wait_for(self._is_synced_or_failed, self._sync_timeout_s)
                self._check_synced()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    def snapshot(self) -> Snapshot:
        """Return the current objects; the cost is a copy of the kinds that have changed."""
        with self._condition:
            return Snapshot(
                self._version,
                self._nodes.snapshot(),
                self._pods.snapshot(),
                self._groups.snapshot(),
            )

    def put(self, kind: Kind, obj: Json) -> None:
        """Store the object that a write returned, unless the watch has already passed it.

        Do not pass the response to a deletion unless it has ``deletionTimestamp``: the watch
        reports when the object is gone.
        """
        informer = self._informers[kind]
        self._apply(partial(informer.store.put, informer.resource.transform(obj)))

    def wait(self, version: int, timeout_s: float) -> bool:
        """Wait for a version newer than ``version``; return False if there is none in time."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._version > version or self._stopping.is_set(), timeout_s
            )
            return self._version > version

    def lag_s(self) -> dict[Kind, float]:
        """Return the seconds since the last response or event, by kind.

        They stay below ``watch_timeout_s`` * 1.25 + 1; infinite for a kind that is not watched yet.
        """
        with self._condition:
            now_s = time.monotonic()
            return {
                kind: float("inf") if informer.responded_s is None else now_s - informer.responded_s
                for kind, informer in self._informers.items()
            }

    def _is_synced_or_failed(self) -> bool:
        """Return whether every kind is watched, or one has failed permanently."""
        informers = self._informers.values()
        return all(informer.responded_s is not None for informer in informers) or any(
            informer.responded_s is None
            and informer.last_error is not None
            and not is_transient(informer.last_error)
            for informer in informers
        )

    def _check_synced(self) -> None:
        """Raise the error of a kind that is not watched: permanent errors before transient ones."""
        missing = [
            informer for informer in self._informers.values() if informer.responded_s is None
        ]
        for informer in sorted(
            missing, key=lambda one: one.last_error is None or is_transient(one.last_error)
        ):
            error = informer.last_error or TimeoutError(
                f"no response in {self._sync_timeout_s:g} s"
            )
            raise make_cluster_error(
                error, self._reader.host, informer.resource
            ) from informer.last_error

    def _stop(self) -> None:
        with self._condition:
            self._stopping.set()
            self._condition.notify_all()
        self._reader.stop()
        ends_s = time.monotonic() + _JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))

    def _list_and_watch(self, informer: _Informer) -> None:
        """Run the thread of one kind until the cache is stopped."""
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                if not informer.is_listed:
                    self._list(informer)
                self._watch(informer)
                if time.monotonic() - began_s >= _SHORT_WATCH_S:
                    continue
                backoff_s = _backoff_s(informer.failures, None)
            except Exception as error:
                if self._stopping.is_set():
                    return
                backoff_s = _backoff_s(informer.failures, error)
                self._handle_error(informer, error, backoff_s)
            informer.failures += 1
            self._stopping.wait(backoff_s)

    def _list(self, informer: _Informer) -> None:
        """List once. A function of its own, so that the watch does not keep the list alive."""
        items, version = list_all(self._reader, informer.resource)
        self._apply(partial(informer.store.replace, items, version))
        informer.is_listed = True

    def _watch(self, informer: _Informer) -> None:
        """Watch until the server ends the watch."""
        # The random factor spreads the renewals of several watches over time.
        timeout_s = self._watch_timeout_s * random.uniform(0.75, 1.25)  # noqa: S311
        events = watch(self._reader, informer.resource, informer.store.version, timeout_s=timeout_s)
        opened_s = time.monotonic()
        self._record_response(informer)
        try:
            for event, obj in events:
                self._apply(partial(informer.store.apply_event, event, obj))
                informer.failures = 0
                self._record_response(informer)
        finally:
            if time.monotonic() - opened_s >= _SHORT_WATCH_S:
                informer.failures = 0
        self._record_response(informer)

    def _handle_error(self, informer: _Informer, error: Exception, backoff_s: float) -> None:
        if needs_relist(error):
            informer.is_listed = False
        is_rejected = isinstance(error, ApiException) and not is_transient(error)
        text = (
            str(make_cluster_error(error, self._reader.host, informer.resource))
            if is_rejected
            else describe_error(error)
        )
        log(
            logging.WARNING,
            "watch failed" if informer.is_listed else "list or watch failed: listing again",
            traceback=not is_rejected and not is_transient(error),
            kind=informer.resource.kind,
            error=text,
            retry_after_s=round(backoff_s, 3),
        )
        with self._condition:
            informer.last_error = without_frames(error)
            self._condition.notify_all()

    def _apply(self, change: Callable[[], bool]) -> None:
        """Apply a change, and raise the version if it returns True."""
        with self._condition:
            if change():
                self._version += 1
                self._condition.notify_all()

    def _record_response(self, informer: _Informer) -> None:
        with self._condition:
            is_first = informer.responded_s is None
            informer.responded_s = time.monotonic()
            if is_first:
                self._condition.notify_all()


def _backoff_s(failures: int, error: Exception | None) -> float:
    """Return the exponential backoff, with jitter, but at least the server's Retry-After."""
    limit_s = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0 ** min(failures, 20))
    headers = error.headers if isinstance(error, ApiException) else None
    retry_after = str((headers or {}).get("Retry-After", ""))
    at_least_s = min(MAX_BACKOFF_S, int(retry_after)) if retry_after.isdecimal() else 0.0
    return max(at_least_s, limit_s * random.uniform(0.5, 1.0))  # noqa: S311
