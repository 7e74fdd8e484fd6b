"""Fake Kubernetes API server in this process, for the official client over real HTTP.

Its validation and messages follow kubernetes/kubernetes 1.36 for everything that a scheduler or a
gate can get wrong. It has no users, roles, schemas of custom resources, server-side apply,
controllers or garbage collection: see `registry.py` and `pod_rules.py`.

References
----------
https://kubernetes.io/docs/reference/using-api/api-concepts/ (versions, watches, pages, patches)
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self

from kubernetes import client as kubernetes_client

from tests.schedulers.kubernetes.api_server.api_http import HttpServer, Request
from tests.schedulers.kubernetes.api_server.faults import Fault
from tests.schedulers.kubernetes.api_server.object_store import Signal
from tests.schedulers.kubernetes.api_server.patches import merge_patch
from tests.schedulers.kubernetes.api_server.registry import Registry
from tests.schedulers.kubernetes.api_server.resources import PODS, Resource
from tests.schedulers.kubernetes.api_server.statuses import Json
from tests.support.waiting import wait_until


class ApiServer:
    """Fake API server on a free port of 127.0.0.1, active inside ``with``.

    Parameters
    ----------
    history_changes : int
        Number of changes that a watch can resume from.
    clock : callable
        Current time with a time zone; timestamps are truncated to whole seconds.

    Examples
    --------
    >>> with ApiServer() as server:
    ...     core = CoreV1Api(server.client())
    ...     core.create_namespaced_pod("default", pod("a"))
    """

    def __init__(
        self,
        *,
        history_changes: int = 1000,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.registry = Registry(history_changes, clock)
        self._clients: list[kubernetes_client.ApiClient] = []
        self._http = HttpServer(self.registry)
        self.requests = self._http.requests
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._serve()
        return self

    def _serve(self) -> None:
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="API server"
        )
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.go_down()
        for client in self._clients:
            client.close()
            client.rest_client.pool_manager.clear()

    def go_down(self) -> None:
        """Stop listening; stored objects stay, and can be changed without HTTP."""
        self._http.stop()
        self._thread.join()

    def come_up(self) -> None:
        """Serve again at the same address, with an empty ``requests``."""
        self._http = HttpServer(self.registry, self._http.server_address[1])
        self.requests = self._http.requests
        self._serve()

    def client(self, *, retries: Any = None) -> kubernetes_client.ApiClient:
        """Return an official client of this server.

        ``retries`` is passed to urllib3. By default it retries up to 3 times: GET, PUT and DELETE
        after a broken connection, or after 429 or 503 with Retry-After. False disables retries.
        """
        configuration = kubernetes_client.Configuration(host=self.url)
        configuration.proxy = None
        configuration.retries = retries
        client = kubernetes_client.ApiClient(configuration)
        self._clients.append(client)
        return client

    def kubeconfig(self) -> Json:
        """Return the content of a kubeconfig file for a client in another process."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }

    def create(self, plural: str, body: Json, namespace: str | None = None) -> Json:
        """Create an object without HTTP, in its own namespace or in "default"."""
        resource = self._resource(plural)
        own = (body.get("metadata") or {}).get("namespace") or "default"
        return self.registry.create(
            resource, (namespace or own) if resource.namespaced else "", body
        )

    def get(self, plural: str, name: str, namespace: str = "default") -> Json | None:
        """Return the stored object, or None."""
        resource = self._resource(plural)
        return self.registry.store.get(resource, namespace if resource.namespaced else "", name)

    def all(self, plural: str, namespace: str = "") -> list[Json]:
        return self.registry.store.all(self._resource(plural), namespace)

    def delete(self, plural: str, name: str, namespace: str = "default", **options: Any) -> Json:
        """Delete an object without HTTP; ``options`` as in DeleteOptions."""
        resource = self._resource(plural)
        return self.registry.delete(
            resource, namespace if resource.namespaced else "", name, options
        )

    def change(
        self, plural: str, name: str, patch: Json, namespace: str = "default", status: bool = False
    ) -> Json:
        """Merge-patch an object without HTTP."""
        resource = self._resource(plural)
        where = namespace if resource.namespaced else ""
        return self.registry.patch(
            resource, where, name, lambda old: merge_patch(old, patch), status=status
        )

    def set_phase(self, name: str, phase: str, namespace: str = "default") -> Json:
        """Set the phase as a kubelet does: "Running" (which is Ready), "Succeeded" or "Failed"."""
        pod = self.registry.get(PODS, namespace, name)
        conditions = [
            *(c for c in pod["status"].get("conditions", []) if c["type"] != "Ready"),
            {"type": "Ready", "status": "True" if phase == "Running" else "False"},
        ]
        return self.change(
            "pods", name, {"status": {"phase": phase, "conditions": conditions}}, namespace, True
        )

    def finish(self, name: str, namespace: str = "default") -> Json:
        """Remove a terminating pod, as a kubelet does when its containers have ended."""
        if "deletionTimestamp" not in self.registry.get(PODS, namespace, name)["metadata"]:
            raise ValueError(f"pod {name} is not being deleted")
        return self.registry.delete(PODS, namespace, name, {"gracePeriodSeconds": 0})

    def _resource(self, plural: str) -> Resource:
        """Return a resource by its plural, which is unique here."""
        return next(known for known in self.registry.served() if known.plural == plural)

    @property
    def version(self) -> int:
        """Version of the newest write."""
        return self.registry.store.version

    @property
    def open_watches(self) -> int:
        return self.registry.store.watches

    def wait_for_watches(self, count: int, timeout_s: float = 5.0) -> None:
        """Wait until the number of open watches is ``count``."""
        wait_until(
            lambda: self.open_watches == count,
            timeout_s,
            lambda: f"{self.open_watches} watches are open, not {count}",
        )

    def requests_to(self, method: str, path: str = "") -> list[Request]:
        """Return requests by HTTP method or verb, whose path matches a regular expression."""
        return [
            request
            for request in list(self.requests)
            if method in ("*", request.method, request.verb) and re.search(path, request.path)
        ]

    def drop(
        self, method: str, path: str, when: Literal["before", "after"], times: int = 1
    ) -> None:
        """Reset the next connections before or after their request is executed."""
        self._http.faults.add(Fault(method, path, times, drop=when))

    def fail_requests(
        self,
        method: str,
        path: str,
        status: int,
        *,
        times: int = 1,
        retry_after_s: int | None = None,
    ) -> None:
        """Reject the next requests with a status such as 409, 429, 500 or 503."""
        self._http.faults.add(
            Fault(method, path, times, status=status, retry_after_s=retry_after_s)
        )

    def delay(self, method: str, path: str, delay_s: float, times: int = 1) -> None:
        self._http.faults.add(Fault(method, path, times, delay_s=delay_s))

    def clear_faults(self) -> None:
        """Remove the remaining faults."""
        self._http.faults.clear()

    def drop_watches(self) -> None:
        """Reset the connection of every open watch in the middle of a line."""
        self.registry.store.signal(Signal.DROP)

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watch with bookmarks; the real server does so every minute."""
        self.registry.store.bookmark()

    def compact(self) -> None:
        """Drop the history: older versions and continue tokens get status 410 from now on."""
        self.registry.compact()
