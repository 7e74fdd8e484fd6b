"""HTTP layer of the fake API server: requests, responses and watch streams."""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.schedulers.kubernetes.api_server.faults import Faults
from tests.schedulers.kubernetes.api_server.object_store import Bookmark, Signal, Watch
from tests.schedulers.kubernetes.api_server.patches import (
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from tests.schedulers.kubernetes.api_server.registry import Registry, parse_version
from tests.schedulers.kubernetes.api_server.resources import PODS, Resource, Route, parse_path
from tests.schedulers.kubernetes.api_server.statuses import ApiError, Json

MAX_WATCH_S = 1800.0  # the real server's --min-request-timeout
CLIENT_POLL_S = 0.2  # interval at which an idle watch checks whether its client is connected
PATHS_WITHOUT_OBJECTS: dict[str, Any] = {
    "/version": {
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "gc",
        "platform": "linux/amd64",
    },
    "/healthz": "ok",
    "/livez": "ok",
    "/readyz": "ok",
}
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Request(NamedTuple):
    """Received request, with the verb and route that RBAC would check."""

    method: str
    path: str
    query: dict[str, str]
    verb: str
    route: Route
    user_agent: str
    received_s: float  # by time.monotonic()


def request_verb(method: str, route: Route, query: dict[str, str]) -> str:
    if method == "GET" and not route.name:
        return "watch" if query.get("watch") in ("true", "1", "True") else "list"
    if method == "GET":
        return "get"
    return "deletecollection" if method == "DELETE" and not route.name else VERBS[method]


class HttpServer(ThreadingHTTPServer):
    """HTTP server with one thread for each connection.

    Attributes
    ----------
    requests : list of Request
        All requests, in the order of arrival.
    """

    daemon_threads = False  # server_close() waits for them
    request_queue_size = 128

    def __init__(self, registry: Registry, port: int = 0) -> None:
        self.registry = registry
        self.faults = Faults()
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.registry.store.signal(Signal.CLOSE)
        self._shut_down_connections()
        self.server_close()

    def add_connection(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
        if self.stopping.is_set():
            self._shut_down_connections()

    def remove_connection(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _shut_down_connections(self) -> None:
        """Wake the threads that wait for another request."""
        with self._lock:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the client has closed it

    def shutdown_request(self, request: Any) -> None:
        """Close without a shutdown, which would prevent a reset."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _DroppedError(Exception):
    """Connection reset by an injected fault."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a response is sent in one piece
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self.server.add_connection(self.connection)

    def finish(self) -> None:
        self.server.remove_connection(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def do_GET(self) -> None:
        """Handle a request of any method."""
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        try:
            if (path := url.path.rstrip("/")) in PATHS_WITHOUT_OBJECTS:
                self._respond(200, PATHS_WITHOUT_OBJECTS[path])
                return
            route = parse_path(url.path)
            verb = request_verb(self.command, route, query)
            agent = self.headers.get("User-Agent", "")
            server.requests.append(
                Request(self.command, url.path, query, verb, route, agent, time.monotonic())
            )
            fault = server.faults.take((self.command, verb), url.path)
            if fault.delay_s:
                server.stopping.wait(fault.delay_s)
            if fault.drop == "before":
                self._reset()
            if fault.status is not None:
                raise ApiError(fault.status, "injected fault", retry_after_s=fault.retry_after_s)
            resource = server.registry.resource(route)
            if verb == "watch":
                self._watch(resource, route, query)
                return
            try:
                code, response = self._execute(resource, route, verb, query, body)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ApiError(400, f"cannot be decoded: {error!r}") from error
            finally:
                if fault.drop == "after":
                    self._reset()  # also if the request failed
            self._respond(code, response)
        except ApiError as error:
            self._respond(error.code, error.status, retry_after_s=error.retry_after_s)
        except _DroppedError:
            self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _execute(
        self, resource: Resource, route: Route, verb: str, query: dict[str, str], raw: bytes
    ) -> tuple[int, Json]:
        registry, where, name = self.server.registry, route.namespace, route.name
        if query.get("dryRun"):
            raise ApiError(400, "dryRun is not served here")
        try:
            body = json.loads(raw) if raw else {}
        except ValueError as error:
            raise ApiError(400, f"couldn't read the body: {error}") from None
        status = route.subresource == "status"
        is_pod_subresource = resource is PODS and verb == "create" and name
        match verb:
            case "list":
                return 200, registry.list_of(resource, where, query)
            case "create" if is_pod_subresource and route.subresource == "binding":
                return 201, registry.bind(where, name, body)
            case "create" if is_pod_subresource and route.subresource == "eviction":
                return 201, registry.evict(where, name, body)
            case "get" if status or not route.subresource:
                return 200, registry.get(resource, where, name)
            case "create" if not name and (where or not resource.namespaced):
                return 201, registry.create(resource, where, body)
            case "update" if name:
                known = registry.store.get(resource, where, name) is not None
                response = registry.replace(resource, where, name, body, status=status)
                return 200 if known else 201, response
            case "patch" if name:
                return 200, registry.patch(
                    resource, where, name, self._patch(resource, body), status=status
                )
            case "delete" if not route.subresource:
                return 200, registry.delete(resource, where, name, _delete_options(query, body))
            case "deletecollection":
                found = registry.list_of(resource, where, query)
                for item in found["items"]:
                    metadata = item["metadata"]
                    registry.delete(
                        resource,
                        metadata.get("namespace", ""),
                        metadata["name"],
                        _delete_options(query, body),
                    )
                return 200, found
        raise ApiError(405, "the server does not allow this method on the requested resource")

    def _patch(self, resource: Resource, body: Any) -> Callable[[Json], Json]:
        kind = self.headers.get("Content-Type", "").partition(";")[0]
        match kind:
            case "application/merge-patch+json":
                apply: Callable[[Json, Any], Json] = merge_patch
            case "application/json-patch+json":
                return lambda old: json_patch(old, body)
            case "application/strategic-merge-patch+json" if not resource.custom:
                apply = strategic_merge_patch
            case _:
                raise ApiError(
                    415,
                    "the body of the request was in an unknown format - accepted media types"
                    " include: application/json-patch+json, application/merge-patch+json,"
                    " application/apply-patch+yaml",
                )
        if not isinstance(body, dict):
            raise ApiError(400, f"cannot unmarshal {type(body).__name__} into a map")
        return lambda old: apply(old, body)

    def _watch(self, resource: Resource, route: Route, query: dict[str, str]) -> None:
        registry = self.server.registry
        if query.get("sendInitialEvents"):
            raise ApiError(422, "sendInitialEvents: Forbidden: the WatchList feature is off")
        since = parse_version(query.get("resourceVersion"))
        matches = registry.matching(resource, query)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1", "True")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            with registry.store.watching(resource, route.namespace, matches, since) as watch:
                ends_s = time.monotonic() + float(query.get("timeoutSeconds") or MAX_WATCH_S)
                self._stream(resource, watch, bookmarks, ends_s)
        except ApiError as error:
            self._chunk({"type": "ERROR", "object": error.status})
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _stream(self, resource: Resource, watch: Watch, bookmarks: bool, ends_s: float) -> None:
        while (left_s := ends_s - time.monotonic()) > 0:
            try:
                message = watch.queue.get(timeout=min(left_s, CLIENT_POLL_S))
            except Empty:
                if select.select([self.connection], [], [], 0)[0]:
                    raise ConnectionAbortedError("the client disconnected") from None
                continue
            match message:
                case Signal.CLOSE:
                    return
                case Signal.DROP:
                    self.wfile.write(b'40\r\n{"type":"MODIFIED","obj')
                    self.wfile.flush()
                    self._reset()
                case Bookmark(version):
                    if bookmarks:
                        self._chunk(_bookmark(resource, version))
                case _:
                    if event := watch.event(message):
                        self._chunk(event)
        if bookmarks and (last := self.server.registry.store.final_bookmark(watch)):
            # The real server also sends a bookmark shortly before the end.
            self._chunk(_bookmark(resource, last.version))

    def _chunk(self, event: Json) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def _respond(self, code: int, response: Any, *, retry_after_s: int | None = None) -> None:
        as_text = isinstance(response, str)
        payload = response.encode() if as_text else json.dumps(response).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if as_text else "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(payload)
        self.wfile.flush()

    def _reset(self) -> None:
        """Close so that the client reads ECONNRESET, not an end."""
        linger_not = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
        raise _DroppedError


def _bookmark(resource: Resource, version: int) -> Json:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    named = {"kind": resource.kind, "apiVersion": resource.api_version}
    return {"type": "BOOKMARK", "object": {**named, "metadata": metadata}}


def _delete_options(query: dict[str, str], body: Json) -> Json:
    """Return the options from the body, or else from the query, as the real server does."""
    if body:
        return body
    period = query.get("gracePeriodSeconds")
    return {"gracePeriodSeconds": int(period)} if period is not None else {}
